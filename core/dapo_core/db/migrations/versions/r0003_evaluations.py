"""What `dapo evaluate` found."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "evaluations",
        sa.Column("evaluation_id", sa.String(128), nullable=False),
        sa.Column("set_name", sa.String(63), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("run_id", sa.String(128)),
        sa.Column("step", sa.BigInteger()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("sampling", sa.JSON(), nullable=False),
        sa.Column("results", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("evaluation_id", "set_name", name="pk_evaluations"),
    )
    op.create_index("ix_evaluations_run_id", "evaluations", ["run_id"])
