"""`python -m trainer.engine --port 8610 --model M`: starts one embedded engine."""

import os
import sys

from trainer.engine.config import parse_config
from trainer.engine.serving import serve

if __name__ == "__main__":
    sys.exit(serve(parse_config(sys.argv[1:], os.environ)))
