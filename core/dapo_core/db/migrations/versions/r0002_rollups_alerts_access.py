"""Rollups of curves, alerts of guards, how far spools were delivered, and which namespace a login is bound to."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    # Rollups of curves that are there already are made by the next write to them; until then they read from points.
    op.add_column("latest", sa.Column("rolled_to", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("latest", sa.Column("thinned_to", sa.BigInteger(), nullable=False, server_default="0"))
    op.create_table(
        "rollups",
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("metric_id", sa.Integer(), nullable=False),
        sa.Column("width", sa.Integer(), nullable=False),
        sa.Column("bucket", sa.BigInteger(), nullable=False),
        sa.Column("step_from", sa.BigInteger(), nullable=False),
        sa.Column("step_to", sa.BigInteger(), nullable=False),
        sa.Column("low", sa.Double()),
        sa.Column("high", sa.Double()),
        sa.Column("total", sa.Double()),
        sa.Column("finite", sa.BigInteger(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("last", sa.Double()),
        sa.Column("flag", sa.String(4)),
        sa.PrimaryKeyConstraint("run_id", "metric_id", "width", "bucket", name="pk_rollups"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "alerts",
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("rule", sa.String(64), nullable=False),
        sa.Column("first_seen", sa.Double(), nullable=False),
        sa.Column("last_seen", sa.Double(), nullable=False),
        sa.Column("cleared_at", sa.Double()),
        sa.Column("first_step", sa.BigInteger()),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("action", sa.String(16), nullable=False),
        sa.Column("acknowledged_by", sa.String(253)),
        sa.Column("acknowledged_at", sa.Double()),
        sa.PrimaryKeyConstraint("run_id", "rule", "first_seen", name="pk_alerts"),
    )
    op.create_table(
        "deliveries",
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("spool", sa.String(64), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "spool", name="pk_deliveries"),
    )
    op.create_table(
        "access",
        sa.Column("role", sa.String(63), nullable=False),
        sa.Column("namespace", sa.String(63)),
        sa.PrimaryKeyConstraint("role", name="pk_access"),
    )
