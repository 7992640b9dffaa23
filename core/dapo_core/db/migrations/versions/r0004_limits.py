"""Limits of what a row may hold: who writes one is not trusted, and who reads it computes with it.

NOT VALID: new and changed rows are checked, and existing ones are not read, so that no table is locked for longer than
a moment. SQLite cannot add constraints; a file has one user.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

# Whole numbers up to here are the same as JSON numbers; times up to the year 9999, in Unix seconds.
_STEP = "{0} BETWEEN 0 AND 9007199254740992"
_TIME = "{0} BETWEEN 0 AND 253402300799"
_ATTEMPT = "{0} BETWEEN 0 AND 9999"
_COUNT = "{0} >= 0"
# A curve's points that are not finite have a flag instead of a value. PostgreSQL sorts NaN above infinity.
_FINITE = "{0} > '-Infinity' AND {0} < 'Infinity'"
_OBJECT = "json_typeof({0}) = 'object' AND octet_length({0}::text) <= 4194304"

_LIMITS = {
    "runs": {
        "run_id": "{0} ~ '^[A-Za-z0-9]([-A-Za-z0-9._]*[A-Za-z0-9])?$'",
        "name": "{0} !~ '[[:cntrl:]]'",
        "spec": _OBJECT,
        "config": "json_typeof({0}) IN ('object', 'null') AND octet_length({0}::text) <= 4194304",
        "tags": "json_typeof({0}) = 'object' AND octet_length({0}::text) <= 65536",
        "created_at": _TIME,
        "started_at": _TIME,
        "ended_at": _TIME,
        "total_steps": _STEP,
    },
    "attempts": {
        "attempt": _ATTEMPT,
        "started_at": _TIME,
        "ended_at": _TIME,
        "step_from": _STEP,
        "step_to": _STEP,
    },
    "points": {"step": _STEP, "attempt": _ATTEMPT, "ts": _TIME, "value": _FINITE},
    "latest": {
        "step": _STEP,
        "attempt": _ATTEMPT,
        "ts": _TIME,
        "value": _FINITE,
        "rolled_to": _STEP,
        "thinned_to": _STEP,
    },
    "rollups": {
        "width": "{0} BETWEEN 1 AND 1048576",
        "bucket": _STEP,
        "step_from": _STEP,
        "step_to": _STEP,
        "finite": _COUNT,
        "count": _COUNT,
    },
    "events": {"ts": _TIME, "attempt": _ATTEMPT, "step": _STEP},
    "checkpoints": {
        "step": _STEP,
        "attempt": _ATTEMPT,
        "updated_at": _TIME,
        "size_bytes": _COUNT,
        "files": _COUNT,
        "metrics": _OBJECT,
    },
    "samples": {"step": _STEP, "attempt": _ATTEMPT, "rows": _COUNT, "size_bytes": _COUNT, "ts": _TIME},
    "alerts": {
        "first_seen": _TIME,
        "last_seen": _TIME,
        "cleared_at": _TIME,
        "first_step": _STEP,
        "acknowledged_at": _TIME,
    },
    "evaluations": {"step": _STEP, "created_at": _TIME, "sampling": _OBJECT, "results": _OBJECT},
    "deliveries": {"seq": _COUNT},
}


def upgrade() -> None:
    if op.get_bind().dialect.name != "postgresql":
        return
    for table, columns in _LIMITS.items():
        limits = ", ".join(
            f"ADD CONSTRAINT ck_{table}_{column} CHECK ({rule.format(column)}) NOT VALID"
            for column, rule in columns.items()
        )
        op.execute(f"ALTER TABLE {table} {limits}")
