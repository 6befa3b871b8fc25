"""When a version became active: what tells how many were published since an episode began.

Revision 0003, after 0002. Versions of before have none, and are older than any episode that is open now.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("versions", sa.Column("activated_ms", sa.BigInteger()))


def downgrade() -> None:
    op.drop_column("versions", "activated_ms")
