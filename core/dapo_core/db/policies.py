"""Groups, rights and row policies of a PostgreSQL store, as SQL statements. Pure.

A tenant's login is trusted with nothing but rows of its own runs: it updates by column, so that it cannot lock a whole
table; it cannot choose the number of a metric's name; and every function names the schema of what it reads, because a
temporary table of the session would come first otherwise.
"""

from collections.abc import Sequence
from typing import Final, Literal

from sqlalchemy import Table

from dapo_core.db import schema

Group = Literal["writer", "reader", "acknowledger", "operator", "notifier"]
GROUPS: Final[dict[Group, str]] = {
    "writer": "dapo_writer",
    "reader": "dapo_reader",
    "acknowledger": "dapo_acknowledger",
    "operator": "dapo_operator",
    "notifier": "dapo_notifier",
}
_WRITER, _OPERATOR, _READERS = GROUPS["writer"], GROUPS["operator"], "dapo_reader, dapo_acknowledger"
_ALL: Final = ", ".join(GROUPS.values())
_NOTIFIER: Final = GROUPS["notifier"]
# The groups that read all of a run. Who sends alerts to people reads those and the names of their runs.
_SEEING: Final = ", ".join(group for group in GROUPS.values() if group != _NOTIFIER)
# Tables that only the owner may use, and tables without rows of runs.
_CLOSED: Final = (schema.access,)
_SHARED: Final = (schema.metric_names,)
# Columns that a writer may update, where not all outside the key: a run keeps its name and namespace, and people
# acknowledge alerts.
_CHANGED: Final = {
    "runs": "config, state, reason, message, started_at, ended_at, tags, total_steps, owner",
    "alerts": "last_seen, cleared_at, message, action",
}


def bound_tables() -> Sequence[Table]:
    """The tables whose rows belong to a run, and so to a namespace."""
    return [table for table in schema.metadata.sorted_tables if table not in (*_CLOSED, *_SHARED)]


def statements() -> list[str]:
    """What makes the groups, rights and policies; it may be run again at any time."""
    made = [
        *(_create_group(group) for group in GROUPS.values()),
        *_scope(),
        "DO $$ BEGIN EXECUTE format('REVOKE ALL ON DATABASE %I FROM PUBLIC', current_database()); "
        "EXECUTE format('REVOKE CREATE ON SCHEMA %I FROM PUBLIC', current_schema()); "
        f"EXECUTE format('GRANT CONNECT ON DATABASE %I TO {_ALL}', current_database()); "
        f"EXECUTE format('GRANT USAGE ON SCHEMA %I TO {_ALL}', current_schema()); END $$",
        f"GRANT SELECT ON alembic_version TO {_ALL}",
        # By which the operator tries whether the database takes writes.
        f"GRANT UPDATE (version_num) ON alembic_version TO {_OPERATOR}",
        *_numbers("metric_names", "metric_id"),
        f"REVOKE ALL ON metric_names FROM PUBLIC, {_ALL}",
        f"GRANT SELECT ON metric_names TO {_SEEING}",
        f"GRANT INSERT (name) ON metric_names TO {_WRITER}, {_OPERATOR}",
        *_numbers("run_keys", "run_key"),
    ]
    for table in bound_tables():
        made += _rights(table) + _policies(table)
    return [
        *made,
        f"GRANT UPDATE (acknowledged_by, acknowledged_at) ON alerts TO {GROUPS['acknowledger']}",
        f"GRANT INSERT, UPDATE (value, person, at, removed) ON annotations TO {GROUPS['acknowledger']}",
        f"GRANT SELECT (run_id, name, namespace) ON runs TO {_NOTIFIER}",
        f"GRANT SELECT ON alerts TO {_NOTIFIER}",
        f"GRANT SELECT, INSERT, UPDATE (due_at, sent_at, tries, error) ON notices TO {_NOTIFIER}",
    ]


def _create_group(group: str) -> str:
    # Groups belong to the server, not to the database: the upgrade of another database may create them meanwhile.
    return (
        f"DO $$ BEGIN CREATE ROLE {group} NOLOGIN; "
        "EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
    )


def _scope() -> list[str]:
    return [
        # The login, not the current role, so that SET ROLE makes no difference. In PL/pgSQL, which caches the query's
        # plan: it runs several times per statement. Parallel safe, because long curves are read by several workers.
        _function(
            "CREATE OR REPLACE FUNCTION dapo_scope() RETURNS text "
            "LANGUAGE plpgsql STABLE PARALLEL SAFE SECURITY DEFINER",
            "RETURN (SELECT coalesce(namespace, ''*'') FROM %1$I.access WHERE role = session_user);",
        ),
        "REVOKE ALL ON FUNCTION dapo_scope() FROM PUBLIC",
        f"GRANT EXECUTE ON FUNCTION dapo_scope() TO {_ALL}",
    ]


def _numbers(table: str, column: str) -> list[str]:
    """A new row gets a random number. Numbers from a sequence could be taken in advance, or used up. With the rights of
    the owner, who sees the numbers that other teams have."""
    return [
        _function(
            f"CREATE OR REPLACE FUNCTION dapo_{column}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER",
            f"LOOP NEW.{column} := 1 + floor(random() * 2147483646)::integer; "
            f"EXIT WHEN NOT EXISTS (SELECT FROM %1$I.{table} WHERE {column} = NEW.{column}); "
            "END LOOP; RETURN NEW;",
        ),
        f"ALTER TABLE {table} ALTER COLUMN {column} DROP DEFAULT",
        f"CREATE OR REPLACE TRIGGER dapo_{column} BEFORE INSERT ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION dapo_{column}()",
        f"REVOKE ALL ON SEQUENCE {table}_{column}_seq FROM PUBLIC, {_ALL}",
    ]


def _function(head: str, body: str) -> str:
    """A function that finds the server's names and the store's (%1$I is its schema), whatever the session made."""
    return (
        f"DO $do$ BEGIN EXECUTE format('{head} SET search_path = pg_catalog, %1$I, pg_temp "
        f"AS $body$ BEGIN {body} END $body$', current_schema()); END $do$"
    )


def _rights(table: Table) -> list[str]:
    if table is schema.run_keys:
        return [
            f"REVOKE ALL ON run_keys FROM PUBLIC, {_ALL}",
            f"GRANT SELECT ON run_keys TO {_SEEING}",
            f"GRANT INSERT (run_id) ON run_keys TO {_WRITER}, {_OPERATOR}",
        ]
    if table is schema.notices:
        return [f"REVOKE ALL ON notices FROM PUBLIC, {_ALL}"]
    if table is schema.annotations:  # not of the code of jobs, which could speak in anybody's name
        return [f"REVOKE ALL ON annotations FROM PUBLIC, {_ALL}", f"GRANT SELECT ON annotations TO {_SEEING}"]
    changed = _CHANGED.get(table.name) or ", ".join(c.name for c in table.columns if not c.primary_key)
    return [
        f"REVOKE ALL ON {table.name} FROM PUBLIC, {_ALL}",
        f"GRANT SELECT ON {table.name} TO {_SEEING}",
        # By column: whoever may update a table may also lock it, against all other writers.
        f"GRANT INSERT, UPDATE ({changed}) ON {table.name} TO {_WRITER}",
        f"GRANT INSERT, UPDATE ON {table.name} TO {_OPERATOR}",
    ]


def _policies(table: Table) -> list[str]:
    """The rows that a login may read and write. Subqueries without a reference to the row run once per statement; the
    one on `runs` or `run_keys` is itself subject to the policy of that table."""
    bound = "namespace = (SELECT dapo_scope())"
    if table is schema.curve_points:
        bound = "EXISTS (SELECT 1 FROM run_keys WHERE run_keys.run_key = curve_points.run_key)"
    elif table.name != "runs":
        bound = f"EXISTS (SELECT 1 FROM runs WHERE runs.run_id = {table.name}.run_id)"
    rows = f"((SELECT dapo_scope()) = '*' OR {bound})"
    policies = [
        ("dapo_write", f"FOR ALL TO {_WRITER}, {_OPERATOR} USING {rows} WITH CHECK {rows}"),
        ("dapo_read", f"FOR SELECT TO {_READERS} USING {rows}"),
    ]
    if table is schema.notices:
        policies = [("dapo_notify", f"FOR ALL TO {_NOTIFIER} USING {rows} WITH CHECK {rows}")]
    if table.name in ("runs", "alerts"):
        policies.append(("dapo_notify", f"FOR SELECT TO {_NOTIFIER} USING {rows}"))
    if table is schema.annotations:
        policies.append(("dapo_annotate", f"FOR ALL TO {GROUPS['acknowledger']} USING {rows} WITH CHECK {rows}"))
    if table.name == "alerts":
        policies.append(("dapo_acknowledge", f"FOR UPDATE TO {GROUPS['acknowledger']} USING {rows} WITH CHECK {rows}"))
        # Nobody but people says that people have seen it. Not by column: trainers name all of them.
        nobody = "(acknowledged_by IS NULL AND acknowledged_at IS NULL)"
        policies.append(("dapo_unseen", f"AS RESTRICTIVE FOR INSERT TO {_WRITER} WITH CHECK {nobody}"))
    made = [f"ALTER TABLE {table.name} ENABLE ROW LEVEL SECURITY"]
    for name, rest in policies:
        made += [f"DROP POLICY IF EXISTS {name} ON {table.name}", f"CREATE POLICY {name} ON {table.name} {rest}"]
    return made
