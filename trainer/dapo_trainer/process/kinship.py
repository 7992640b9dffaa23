"""Which processes belong to a run, however they were started. Pure.

A trainer starts Ray's daemons, their workers and vLLM's engine processes; some open sessions of their own, some outlive
their parents, some write their title over their environment. No one sign finds them all, so any of these counts:
being seen earlier below the trainer, the trainer's session, the run's marks in the environment, and being a child of
one that belongs.
"""

from collections.abc import Collection, Iterable

from dapo_trainer.process.table import Identity, Process, Table


def family(table: Table, seeds: Iterable[int], spare: Collection[int] = ()) -> list[Process]:
    """`seeds` and all their descendants, without `spare` and what is reached only through it."""
    children: dict[int, list[int]] = {}
    for row in table.values():
        children.setdefault(row.parent, []).append(row.pid)
    found: dict[int, Process] = {}
    waiting = list(seeds)
    while waiting:
        pid = waiting.pop()
        if pid in found or pid in spare or pid not in table:
            continue
        found[pid] = table[pid]
        waiting.extend(children.get(pid, ()))
    return list(found.values())


def ancestry(table: Table, pid: int) -> set[int]:
    """`pid` and the processes above it, which are never to be ended."""
    above: set[int] = set()
    while pid in table and pid not in above:
        above.add(pid)
        pid = table[pid].parent
    return above


def in_session(table: Table, leader: Identity) -> list[int]:
    """Processes in the session that `leader` opened, also after its end."""
    now = table.get(leader.pid)
    if now is not None and now.identity != leader:
        return []  # the kernel gives an id anew only when no session of that name is left
    return [row.pid for row in table.values() if row.session == leader.pid and row.identity.started >= leader.started]


def still_there(table: Table, seen: Iterable[Identity]) -> list[int]:
    """Those of `seen` that live on."""
    return [identity.pid for identity in seen if (row := table.get(identity.pid)) and row.identity == identity]
