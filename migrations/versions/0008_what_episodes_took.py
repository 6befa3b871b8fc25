"""What an episode's calls took: tokens, the engines' time, and the price of models that are no policy.

Revision 0008, after 0007. Noted when an episode is archived; null in archives of before, and in those of a gateway that
does not know of it: such an episode is left out where costs are summed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    for name in ("engine_ms", "prompt_tokens", "sampled_tokens"):
        op.add_column("episodes", sa.Column(name, sa.BigInteger()))
    op.add_column("episodes", sa.Column("upstream_cost", sa.Double()))


def downgrade() -> None:
    for name in ("upstream_cost", "sampled_tokens", "prompt_tokens", "engine_ms"):
        op.drop_column("episodes", name)
