"""Points by a number of their run instead of its name, with the columns in order of width: half the size.

Rows stay where they are: trainers of earlier versions go on writing to `points`, readers read both tables, and
`dapo db convert` moves what has ended. Vacuum follows the growth of the large tables: by default it waits for a fifth
of the table, and then reads all of it.
"""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_LIMITS = {
    "step": "step BETWEEN 0 AND 9007199254740992",
    "attempt": "attempt BETWEEN 0 AND 9999",
    "ts": "ts BETWEEN 0 AND 253402300799",
    "value": "value > '-Infinity' AND value < 'Infinity'",
}
_VACUUM = (
    "autovacuum_vacuum_insert_scale_factor = 0.01, autovacuum_vacuum_scale_factor = 0.02, "
    "autovacuum_analyze_scale_factor = 0.02"
)


def upgrade() -> None:
    op.create_table(
        "run_keys",
        sa.Column("run_key", sa.Integer(), nullable=False),
        sa.Column("run_id", sa.String(128), nullable=False),
        sa.PrimaryKeyConstraint("run_key", name="pk_run_keys"),
        sa.UniqueConstraint("run_id", name="uq_run_keys_run_id"),
    )
    op.create_table(
        "curve_points",
        sa.Column("ts", sa.Double(), nullable=False),
        sa.Column("value", sa.Double()),
        sa.Column("step", sa.BigInteger(), nullable=False),
        sa.Column("run_key", sa.Integer(), nullable=False),
        sa.Column("metric_id", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("flag", sa.String(4)),
        sa.PrimaryKeyConstraint("run_key", "metric_id", "step", "attempt", name="pk_curve_points"),
        sqlite_with_rowid=False,
    )
    if op.get_bind().dialect.name != "postgresql":
        return
    limits = ", ".join(f"ADD CONSTRAINT ck_curve_points_{name} CHECK ({rule})" for name, rule in _LIMITS.items())
    op.execute(f"ALTER TABLE curve_points {limits}")
    for table in ("points", "curve_points", "rollups"):
        op.execute(f"ALTER TABLE {table} SET ({_VACUUM})")
    # Each step updates these rows: with room on its page, a new version of one needs no entry in the index.
    op.execute("ALTER TABLE latest SET (fillfactor = 70, autovacuum_vacuum_scale_factor = 0.05)")
