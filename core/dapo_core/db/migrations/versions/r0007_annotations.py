"""What people say of runs: notes, tags, stars, and that a run is archived."""

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "annotations",
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("label", sa.String(253), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("person", sa.String(253), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("removed", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "kind", "label", name="pk_annotations"),
    )
