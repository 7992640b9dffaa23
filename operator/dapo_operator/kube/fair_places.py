"""Places at work that namespaces share fairly, however many requests or jobs one of them has."""

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class FairPlaces:
    """`places` at a time, and at most `most_each` of one namespace. Those who wait are served in the order in which
    they came within a namespace, and one namespace after another. With `one_each`, a namespace that has no place gets
    one beyond them: it waits for none of the others."""

    def __init__(self, places: int, *, one_each: bool = False, most_each: int | None = None) -> None:
        self._free, self._one_each, self._most_each = places, one_each, most_each or places
        self._taken = Counter[str]()
        # Namespaces in the order of their next turn; none has an empty queue.
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @asynccontextmanager
    async def place(self, namespace: str) -> AsyncIterator[None]:
        """Hold a place within the block."""
        if not self._takes(namespace):
            turn = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(namespace, deque()).append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self._leave(namespace)
                else:
                    self._forget(namespace, turn)
                raise
        try:
            yield
        finally:
            self._leave(namespace)

    def _takes(self, namespace: str) -> bool:
        taken = self._taken[namespace]
        if not (self._one_each and not taken) and (self._free <= 0 or taken >= self._most_each):
            return False
        self._free -= 1  # below zero: nobody else gets a shared place until so many have left
        self._taken[namespace] += 1
        return True

    def _leave(self, namespace: str) -> None:
        self._free += 1
        self._taken[namespace] -= 1
        if not self._taken[namespace]:
            del self._taken[namespace]
        while self._one_each and namespace in self._waiting and not self._taken[namespace]:
            self._serve(namespace)
        while self._free > 0 and (other := self._next()) is not None:
            self._serve(other)

    def _next(self) -> str | None:
        """The namespace whose turn it is."""
        return next((name for name in self._waiting if self._taken[name] < self._most_each), None)

    def _serve(self, namespace: str) -> None:
        """Give the first one of this namespace its place, and put the namespace last."""
        queue = self._waiting.pop(namespace)
        turn = queue.popleft()
        if queue:
            self._waiting[namespace] = queue
        if turn.cancelled():
            return
        self._free -= 1
        self._taken[namespace] += 1
        turn.set_result(None)

    def _forget(self, namespace: str, turn: "asyncio.Future[None]") -> None:
        queue = self._waiting.get(namespace)
        if queue is not None and turn in queue:
            queue.remove(turn)
            if not queue:
                del self._waiting[namespace]
