"""What was sent of which alert to which receiver, so that nothing is sent twice."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "notices",
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("rule", sa.String(64), nullable=False),
        sa.Column("first_seen", sa.Double(), nullable=False),
        sa.Column("receiver", sa.String(63), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("made_at", sa.Double(), nullable=False),
        sa.Column("due_at", sa.Double()),
        sa.Column("sent_at", sa.Double()),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("error", sa.Text()),
        sa.PrimaryKeyConstraint("run_id", "rule", "first_seen", "receiver", "kind", name="pk_notices"),
    )
