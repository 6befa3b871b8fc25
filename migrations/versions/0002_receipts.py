"""The receipts of an episode beside its archived calls.

Revision 0002, after 0001. Episodes archived before have none: their chain still proves, and cannot say where.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("timelines", sa.Column("receipts", sa.LargeBinary()))


def downgrade() -> None:
    with op.batch_alter_table("timelines") as timelines:
        timelines.drop_column("receipts")
