"""Sends alerts until it is stopped: each receiver has a thread of its own, so that a dead one delays nobody."""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Final

from dapo_core.backoff import Backoff
from dapo_core.db.outbox import Outbox
from dapo_core.errors import DapoError, StoreError
from dapo_core.notify.delivery import Deliver, DeliveryError, deliver
from dapo_core.notify.messages import Bulletin
from dapo_core.notify.receivers import Receiver, ReceiversError
from dapo_core.run.store_rows import Notice

log = logging.getLogger(__name__)

POLL_SECONDS: Final = 10.0
MOST: Final = 20
# Longer than any delivery of so many; until then, another replica leaves the notices alone.
CLAIM_SECONDS: Final = 600.0
BACKOFF: Final = Backoff(10.0, 600.0)


class AlertSender:
    """Sends the alerts of one receiver. `turn` does one round; `run` continues until `stop` is set."""

    def __init__(
        self,
        url: str,
        receiver: Receiver,
        dashboard_url: str = "",
        *,
        deliver: Deliver = deliver,
        now: Callable[[], float] = time.time,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._receiver, self._dashboard_url = receiver, dashboard_url
        self._outbox = Outbox(
            url,
            receiver.name,
            namespaces=receiver.namespaces,
            rules=receiver.guards,
            cleared=receiver.resolved,
        )
        self._deliver, self._now, self._chance = deliver, now, chance
        self._failures = 0
        # Sent, but not recorded so: the store was lost in between.
        self._unrecorded: Sequence[Notice] = ()

    def run(self, stop: threading.Event) -> None:
        """Send until `stop` is set; a message that is under way is finished."""
        while not stop.is_set():
            wait = self.turn()
            stop.wait(wait)
        self._outbox.close()

    def turn(self) -> float:
        """Send what is due now. Returns seconds until the next turn."""
        try:
            failed = self._turn()
        except StoreError as error:
            failed = f"The metadata store cannot be used: {error}", 0.0
        if failed is None:
            self._failures = 0
            return POLL_SECONDS
        self._failures += 1
        words, asked = failed
        wait = max(asked, BACKOFF.delay(self._failures, self._chance()))
        log.warning("The receiver %s: %s. Retrying in %.0f s.", self._receiver.name, words.rstrip("."), wait)
        return wait

    def _turn(self) -> tuple[str, float] | None:
        """Why nothing could be sent, and the seconds for which the receiver asked; None if all is well."""
        if self._unrecorded:
            self._record(self._unrecorded)
        self._outbox.fill(self._now())
        while notices := self._outbox.claim(self._now(), self._now() + CLAIM_SECONDS, MOST):
            if (failed := self._send_all(notices)) is not None:
                return failed
            if len(notices) < MOST:
                break
        return None

    def _send_all(self, notices: Sequence[Notice]) -> tuple[str, float] | None:
        """Sends the notices or postpones them. Returns why not, and the seconds for which the receiver asked, if that
        is so for all of them; what it refuses of one namespace alone is no trouble of the receiver's."""
        messages, refused = _messages(notices), dict[str, str]()
        for place, message in enumerate(messages):
            try:
                self._send(message)
            except (DeliveryError, ReceiversError) as error:
                if not isinstance(error, DeliveryError) or not error.is_refusal or error.wait:
                    failed = str(error), error.wait if isinstance(error, DeliveryError) else 0.0
                    self._postpone([*chain.from_iterable(messages[place:])], *failed)
                    return failed
                self._postpone(message, str(error), 0.0)
                refused |= dict.fromkeys((notice.namespace for notice in message), str(error))
        if len(refused) > 1 and refused.keys() == {notice.namespace for notice in notices}:
            return refused.popitem()[1], 0.0
        for namespace, words in refused.items():
            log.warning("The receiver %s refuses alerts of namespace %s: %s", self._receiver.name, namespace, words)
        return None

    def _send(self, notices: Sequence[Notice]) -> None:
        """One message. Raises DeliveryError, ReceiversError or StoreError."""
        try:
            self._deliver(self._receiver, Bulletin(notices, self._dashboard_url))
        except (DeliveryError, ReceiversError):
            raise
        except Exception as error:  # isolated here: the other messages are still sent
            log.exception("A message for the receiver %s could not be made", self._receiver.name)
            raise DeliveryError(repr(error), is_refusal=True) from error
        log.info("Sent %d alerts to the receiver %s", len(notices), self._receiver.name)
        self._unrecorded = notices
        self._record(notices)

    def _record(self, notices: Sequence[Notice]) -> None:
        self._outbox.sent(notices, self._now())
        self._unrecorded = ()

    def _postpone(self, notices: Sequence[Notice], words: str, asked: float) -> None:
        wait = max(asked, BACKOFF.delay(max(notice.tries for notice in notices), 0.0))
        for notice in self._outbox.failed(notices, words, self._now() + wait):
            log.error("Gave up sending %s of %s to the receiver %s", notice.rule, notice.run_id, self._receiver.name)


def _messages(notices: Sequence[Notice]) -> list[Sequence[Notice]]:
    """Those that go out together: all, but what failed before by namespace. A text that a receiver refuses, such as one
    that a mail server takes for a virus, then holds up nobody else's alerts."""
    made: list[Sequence[Notice]] = []
    if new := [notice for notice in notices if notice.tries <= 1]:
        made.append(new)
    for namespace in dict.fromkeys(notice.namespace for notice in notices):
        if again := [notice for notice in notices if notice.tries > 1 and notice.namespace == namespace]:
            made.append(again)
    return made


def send(url: str, receivers: Sequence[Receiver], dashboard_url: str, stop: threading.Event) -> None:
    """Send alerts of the store at `url` until `stop` is set. Raises DapoError if a thread of ours ends without that."""
    ended: list[str] = []

    def watch(receiver: Receiver) -> None:
        try:
            AlertSender(url, receiver, dashboard_url).run(stop)
        except Exception:
            log.exception("Sending to the receiver %s has ended", receiver.name)
            ended.append(receiver.name)
            stop.set()  # so that this process is restarted

    threads = [threading.Thread(target=watch, args=(receiver,), name=receiver.name) for receiver in receivers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if ended:
        raise DapoError(f"Sending to {', '.join(ended)} failed unexpectedly: see the log.")
