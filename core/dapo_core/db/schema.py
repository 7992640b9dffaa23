"""The tables of the metadata store, the same on every database.

Times are Unix seconds as double precision: SQLite has no timestamp with a time zone. Only columns by which queries
filter are indexed. Points have no foreign keys: spools deliver their records in any order, and a check per point would
cost more than the point.
"""

from typing import Final

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
)

# A later migration can change a constraint only if its name is known.
metadata: Final = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

runs: Final = Table(
    "runs",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("name", String(253), nullable=False),
    Column("namespace", String(63), nullable=False),
    Column("spec", JSON, nullable=False),
    Column("config", JSON(none_as_null=True)),
    Column("state", String(32), nullable=False),
    Column("reason", String(64)),
    Column("message", Text),
    Column("created_at", Double, nullable=False),
    Column("started_at", Double),
    Column("ended_at", Double),
    Column("tags", JSON, nullable=False),
    Column("total_steps", BigInteger),
    Column("owner", String(253)),
    Index(None, "namespace", "name"),
    Index(None, "created_at"),
)

attempts: Final = Table(
    "attempts",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("started_at", Double, nullable=False),
    Column("ended_at", Double),
    Column("step_from", BigInteger),
    Column("step_to", BigInteger),
    Column("reason", String(64)),
    Column("message", Text),
    Column("exit_code", Integer),
    Column("counted", Boolean),
)

metric_names: Final = Table(
    "metric_names",
    metadata,
    Column("metric_id", Integer, primary_key=True),
    Column("name", String(512), nullable=False, unique=True),
)

# The number by which `curve_points` name a run: 4 bytes of each point instead of its whole ID, twice.
run_keys: Final = Table(
    "run_keys",
    metadata,
    Column("run_key", Integer, primary_key=True),
    Column("run_id", String(128), nullable=False, unique=True),
)

# In order of width, so that no row has gaps.
curve_points: Final = Table(
    "curve_points",
    metadata,
    Column("ts", Double, nullable=False),
    Column("value", Double),
    Column("step", BigInteger, nullable=False),
    Column("run_key", Integer, nullable=False),
    Column("metric_id", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("flag", String(4)),
    PrimaryKeyConstraint("run_key", "metric_id", "step", "attempt"),
    # The primary key is the table: half the size and one lookup less per point. PostgreSQL ignores this.
    sqlite_with_rowid=False,
)

# What versions before revision 0005 wrote, and still write; `dapo_core.db.points` reads both tables.
points: Final = Table(
    "points",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("metric_id", Integer, primary_key=True, autoincrement=False),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("ts", Double, nullable=False),
    Column("value", Double),
    Column("flag", String(4)),
    sqlite_with_rowid=False,
)

latest: Final = Table(
    "latest",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("metric_id", Integer, primary_key=True, autoincrement=False),
    Column("step", BigInteger, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("ts", Double, nullable=False),
    Column("value", Double),
    Column("flag", String(4)),
    # Below this step, `rollups` are complete.
    Column("rolled_to", BigInteger, nullable=False, server_default="0"),
    # Below this step, there is one point per bucket (`prune`).
    Column("thinned_to", BigInteger, nullable=False, server_default="0"),
    sqlite_with_rowid=False,
)

rollups: Final = Table(
    "rollups",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("metric_id", Integer, primary_key=True, autoincrement=False),
    # Steps from bucket * width on, `width` of them, as the highest attempt of each step saw it.
    Column("width", Integer, primary_key=True, autoincrement=False),
    Column("bucket", BigInteger, primary_key=True, autoincrement=False),
    Column("step_from", BigInteger, nullable=False),
    Column("step_to", BigInteger, nullable=False),
    Column("low", Double),
    Column("high", Double),
    Column("total", Double),
    Column("finite", BigInteger, nullable=False),
    Column("count", BigInteger, nullable=False),
    Column("last", Double),
    Column("flag", String(4)),
    sqlite_with_rowid=False,
)

# How far each spool was delivered, written in the same transaction: it shows what a store lacks that was restored from
# an older backup.
deliveries: Final = Table(
    "deliveries",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("spool", String(64), primary_key=True),
    Column("seq", BigInteger, nullable=False),
)

events: Final = Table(
    "events",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("dedup_key", String(128), primary_key=True),
    Column("ts", Double, nullable=False),
    Column("type", String(16), nullable=False),
    Column("reason", String(64), nullable=False),
    Column("message", Text, nullable=False),
    Column("attempt", Integer),
    Column("step", BigInteger),
    Index(None, "run_id", "ts"),
)

checkpoints: Final = Table(
    "checkpoints",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("uri", Text, nullable=False),
    Column("updated_at", Double, nullable=False),
    Column("size_bytes", BigInteger),
    Column("files", Integer),
    Column("spec_digest", String(64)),
    Column("metrics", JSON, nullable=False),
    Column("decision", Text),
)

samples: Final = Table(
    "samples",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("attempt", Integer, primary_key=True, autoincrement=False),
    Column("key", Text, nullable=False),
    Column("rows", Integer, nullable=False),
    Column("size_bytes", BigInteger, nullable=False),
    Column("ts", Double, nullable=False),
)

alerts: Final = Table(
    "alerts",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("rule", String(64), primary_key=True),
    Column("first_seen", Double, primary_key=True, autoincrement=False),
    Column("last_seen", Double, nullable=False),
    Column("cleared_at", Double),
    Column("first_step", BigInteger),
    Column("message", Text, nullable=False),
    Column("action", String(16), nullable=False),
    Column("acknowledged_by", String(253)),
    Column("acknowledged_at", Double),
)

# What is to be sent of an alert to a receiver, or was. Due at `due_at`, which a sender moves into the future while it
# sends; null once there is nothing left to do.
notices: Final = Table(
    "notices",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("rule", String(64), primary_key=True),
    Column("first_seen", Double, primary_key=True, autoincrement=False),
    Column("receiver", String(63), primary_key=True),
    Column("kind", String(8), primary_key=True),
    Column("made_at", Double, nullable=False),
    Column("due_at", Double),
    Column("sent_at", Double),
    Column("tries", Integer, nullable=False),
    Column("error", Text),
)

# What people say of runs, in `dapo_core.run.annotations`. `removed`: it was taken back.
annotations: Final = Table(
    "annotations",
    metadata,
    Column("run_id", String(128), primary_key=True),
    Column("kind", String(8), primary_key=True),
    Column("label", String(253), primary_key=True),
    Column("value", Text, nullable=False),
    Column("person", String(253), nullable=False),
    Column("at", Double, nullable=False),
    Column("removed", Boolean, nullable=False),
)

# One row per set. `run_id` and `step` are of the evaluated checkpoint, null for a plain model.
evaluations: Final = Table(
    "evaluations",
    metadata,
    Column("evaluation_id", String(128), primary_key=True),
    Column("set_name", String(63), primary_key=True),
    Column("subject", Text, nullable=False),
    Column("run_id", String(128)),
    Column("step", BigInteger),
    Column("created_at", Double, nullable=False),
    Column("source", Text, nullable=False),
    Column("sampling", JSON, nullable=False),
    Column("results", JSON, nullable=False),
    Index(None, "run_id"),
)

# Which namespace a login of the database is bound to (null: all). Only the owner may read or write it.
access: Final = Table(
    "access",
    metadata,
    Column("role", String(63), primary_key=True),
    Column("namespace", String(63)),
)
