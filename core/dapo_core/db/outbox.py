"""Which alerts are still to be sent to whom: rows of `notices`, shared by all senders of an installation.

A notice is claimed by moving the moment at which it is due; a sender that dies leaves it due again. So each is sent
once, unless its sender dies, or loses the store, between sending it and recording that.
"""

import weakref
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from sqlalchemy import Connection, and_, exists, func, literal, select, update

from dapo_core.db import dialects, schema
from dapo_core.run.store_rows import Notice

# Older alerts are no news: a receiver that is added, or comes back after days, gets what happened since yesterday.
NEWS_SECONDS: Final = 86_400.0
# A namespace's tenants may write alerts of their own: what they write must not fill a channel that others read.
HOURLY: Final = 60
_SEARCHED: Final = 500
_KEY: Final = ("run_id", "rule", "first_seen")

alerts, runs, notices = schema.alerts, schema.runs, schema.notices


class Outbox:
    """The notices of one receiver. Every method is one transaction and raises StoreError."""

    def __init__(
        self,
        url: str,
        receiver: str,
        *,
        namespaces: Collection[str] = (),
        rules: Collection[str] = (),
        cleared: bool = True,
    ) -> None:
        """Only alerts of `namespaces` and `rules` (empty: all); with `cleared`, also that they no longer hold."""
        self._engine = dialects.open_engine(url)
        self._receiver, self._cleared = receiver, cleared
        self._chosen = [alerts.c.run_id == runs.c.run_id]
        if namespaces:
            self._chosen.append(runs.c.namespace.in_(namespaces))
        if rules:
            self._chosen.append(alerts.c.rule.in_(rules))
        self._finalizer = weakref.finalize(self, self._engine.dispose)

    def close(self) -> None:
        """Closes its connections."""
        self._engine.dispose()

    def fill(self, now: float) -> None:
        """Adds what has happened since the last time. Of each namespace at most HOURLY notices an hour; the rest
        follows later."""
        with dialects.transaction(self._engine, "the search for new alerts") as connection:
            count = self._made_since(connection, now - 3600)
            rows = []
            for run_id, rule, first_seen, namespace, kind in self._news(connection, now):
                if count[namespace] < HOURLY:
                    count[namespace] += 1
                    rows.append(
                        {
                            **dict(zip(_KEY, (run_id, rule, first_seen), strict=True)),
                            "receiver": self._receiver,
                            "kind": kind,
                            "made_at": now,
                            "due_at": now,
                            "tries": 0,
                        }
                    )
            if rows:
                connection.execute(dialects.insert(connection, notices).on_conflict_do_nothing(), rows)

    def claim(self, now: float, until: float, most: int) -> list[Notice]:
        """At most `most` notices that are due, oldest first; nobody else gets them before `until`."""
        with dialects.transaction(self._engine, "the claim of notices") as connection:
            due = and_(notices.c.receiver == self._receiver, notices.c.due_at <= now)
            columns = [notices.c[name] for name in (*_KEY, "kind", "made_at", "tries")]
            of_alert = [alerts.c[name] for name in ("message", "action", "first_step", "cleared_at")]
            query = (
                select(*columns, *of_alert, runs.c.name.label("job"), runs.c.namespace)
                .join(alerts, _same(alerts))
                .join(runs, runs.c.run_id == notices.c.run_id)
                .where(due)
                .order_by(notices.c.made_at, notices.c.first_seen, notices.c.run_id, notices.c.rule)
                .limit(most)
                .with_for_update(skip_locked=True, of=notices)
            )
            rows = [dict(row) for row in connection.execute(query).mappings()]
            found = [Notice(**{**row, "tries": row["tries"] + 1}) for row in rows]
            for notice in found:
                self._change(connection, notice, due_at=until, tries=notice.tries)
            return found

    def sent(self, sent: Sequence[Notice], now: float) -> None:
        """Records that the receiver has taken them."""
        with dialects.transaction(self._engine, "the record of a notice") as connection:
            for notice in sent:
                self._change(connection, notice, due_at=None, sent_at=now, error=None)

    def failed(self, failed: Sequence[Notice], error: str, due_at: float) -> list[Notice]:
        """Records that they are to be tried again at `due_at`. Returns those that are given up: they are no news by
        then."""
        given_up = [notice for notice in failed if notice.made_at + NEWS_SECONDS < due_at]
        with dialects.transaction(self._engine, "the record of a notice") as connection:
            for notice in failed:
                self._change(connection, notice, due_at=None if notice in given_up else due_at, error=error)
        return given_up

    def _change(self, connection: Connection, notice: Notice, **values: Any) -> None:
        same = [notices.c[name] == getattr(notice, name) for name in (*_KEY, "kind")]
        connection.execute(update(notices).where(notices.c.receiver == self._receiver, *same).values(**values))

    def _made_since(self, connection: Connection, since: float) -> Counter[str]:
        """How many notices this receiver got of each namespace."""
        of_run = notices.join(runs, runs.c.run_id == notices.c.run_id)
        recent = and_(notices.c.receiver == self._receiver, notices.c.made_at > since)
        query = select(runs.c.namespace, func.count()).select_from(of_run).where(recent).group_by(runs.c.namespace)
        return Counter({namespace: number for namespace, number in connection.execute(query)})

    def _news(self, connection: Connection, now: float) -> Iterator[Any]:
        """(run, rule, first_seen, namespace, kind) of what no notice was made of, each namespace's oldest first."""
        told = notices.alias("told")
        mine = and_(*(told.c[name] == alerts.c[name] for name in _KEY), told.c.receiver == self._receiver)
        was_told = exists().where(mine, told.c.kind == "raised")
        is_raised = and_(~was_told, alerts.c.first_seen.between(now - NEWS_SECONDS, now + 3600))
        kinds = [is_raised]
        if self._cleared:
            sent = exists().where(mine, told.c.kind == "raised", told.c.sent_at.is_not(None))
            said = exists().where(mine, told.c.kind == "cleared")
            kinds.append(and_(sent, ~said, alerts.c.cleared_at.between(now - NEWS_SECONDS, now + 3600)))
        for kind, is_news in zip(("raised", "cleared"), kinds, strict=False):
            place = func.row_number().over(partition_by=runs.c.namespace, order_by=alerts.c.first_seen)
            columns = (*(alerts.c[name] for name in _KEY), runs.c.namespace, literal(kind))
            query = select(*columns).where(*self._chosen, is_news).order_by(place, alerts.c.first_seen)
            yield from connection.execute(query.limit(_SEARCHED))


def _same(table: Any) -> Any:
    return and_(*(table.c[name] == notices.c[name] for name in _KEY))
