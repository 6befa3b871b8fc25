"""Turns itself into another program that ends when its parent does: `python -I deathwatch.py PARENT COMMAND ...`.

A supervisor that is killed with -9 cannot stop its children. So each is started through this: it asks the kernel for
SIGTERM at the parent's death and then executes the command in its own place. Linux only; elsewhere the command is
executed without that promise.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    parent, *command = sys.argv[1:]
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != int(parent):  # it died before we asked
            sys.exit(1)
    os.execvp(command[0], command)  # noqa: S606 - no shell is the point


if __name__ == "__main__":
    main()
