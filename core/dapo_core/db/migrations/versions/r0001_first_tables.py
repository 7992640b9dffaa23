"""The first tables. A released migration never changes: it does not import `schema`, which does."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    _runs()
    _curves()
    _records()


def _runs() -> None:
    op.create_table(
        "runs",
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("name", sa.String(253), nullable=False),
        sa.Column("namespace", sa.String(63), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("config", sa.JSON()),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("reason", sa.String(64)),
        sa.Column("message", sa.Text()),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("started_at", sa.Double()),
        sa.Column("ended_at", sa.Double()),
        sa.Column("tags", sa.JSON(), nullable=False),
        sa.Column("total_steps", sa.BigInteger()),
        sa.Column("owner", sa.String(253)),
        sa.PrimaryKeyConstraint("run_id", name="pk_runs"),
    )
    op.create_index("ix_runs_namespace_name", "runs", ["namespace", "name"])
    op.create_index("ix_runs_created_at", "runs", ["created_at"])
    op.create_table(
        "attempts",
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double()),
        sa.Column("step_from", sa.BigInteger()),
        sa.Column("step_to", sa.BigInteger()),
        sa.Column("reason", sa.String(64)),
        sa.Column("message", sa.Text()),
        sa.Column("exit_code", sa.Integer()),
        sa.Column("counted", sa.Boolean()),
        sa.PrimaryKeyConstraint("run_id", "attempt", name="pk_attempts"),
    )


def _curves() -> None:
    op.create_table(
        "metric_names",
        sa.Column("metric_id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(512), nullable=False),
        sa.PrimaryKeyConstraint("metric_id", name="pk_metric_names"),
        sa.UniqueConstraint("name", name="uq_metric_names_name"),
    )
    op.create_table(
        "points",
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("metric_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("ts", sa.Double(), nullable=False),
        sa.Column("value", sa.Double()),
        sa.Column("flag", sa.String(4)),
        sa.PrimaryKeyConstraint("run_id", "metric_id", "step", "attempt", name="pk_points"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "latest",
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("metric_id", sa.Integer(), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("ts", sa.Double(), nullable=False),
        sa.Column("value", sa.Double()),
        sa.Column("flag", sa.String(4)),
        sa.PrimaryKeyConstraint("run_id", "metric_id", name="pk_latest"),
        sqlite_with_rowid=False,
    )


def _records() -> None:
    op.create_table(
        "events",
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("dedup_key", sa.String(128), nullable=False),
        sa.Column("ts", sa.Double(), nullable=False),
        sa.Column("type", sa.String(16), nullable=False),
        sa.Column("reason", sa.String(64), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("attempt", sa.Integer()),
        sa.Column("step", sa.BigInteger()),
        sa.PrimaryKeyConstraint("run_id", "dedup_key", name="pk_events"),
    )
    op.create_index("ix_events_run_id_ts", "events", ["run_id", "ts"])
    op.create_table(
        "checkpoints",
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("uri", sa.Text(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger()),
        sa.Column("files", sa.Integer()),
        sa.Column("spec_digest", sa.String(64)),
        sa.Column("metrics", sa.JSON(), nullable=False),
        sa.Column("decision", sa.Text()),
        sa.PrimaryKeyConstraint("run_id", "step", name="pk_checkpoints"),
    )
    op.create_table(
        "samples",
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False),
        sa.Column("rows", sa.Integer(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("ts", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("run_id", "step", "attempt", name="pk_samples"),
    )
