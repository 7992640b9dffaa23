"""verl's replay buffer, by groups: dynamic sampling with a cap, immediate refills, surplus groups for the next step.

verl's own buffer ignores `max_num_gen_batches`, so that a collapsed policy is sampled forever, and discards surplus.
"""

import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import transfer_queue as tq
from transfer_queue import KVBatchMeta

from dapo_core.errors import SamplingExhaustedError, StoppedError
from dapo_trainer.groups.dynamic_sampling import Acceptance, GroupOutcome, Kind, Policy, Tally
from dapo_trainer.verl_adapter.session import current

TRAIN = "train"
WAKE_SECONDS = 0.5


class NothingLeft(Exception):
    """No group is left for a later mini-batch of a step, and the job allows training on a partial batch."""


class GroupBuffer:
    """Loaded by verl as `trainer.v1.sampler.custom_sampler`; constructor arguments are verl's."""

    def __init__(self, trainer_mode: str, refill_fn: Callable[[int], int], **_: Any) -> None:
        sampling = current().settings["dynamic_sampling"]
        self._refill = refill_fn
        self._enabled = bool(sampling["enabled"])
        # Also without dynamic sampling: lost groups are replaced, and a reward that always fails loses all of them.
        self._cap = int(sampling["max_generation_batches"])
        self._on_exhausted = sampling["on_exhausted"]
        self._ahead = trainer_mode == "dapo_colocated"
        self._acceptance = Acceptance()
        self._ready: list[GroupOutcome] = []
        self._owed = 0  # rejected groups for which no new prompt was submitted yet
        self.tally = Tally(0, 0)

    def begin_step(self, step: int, batch: int) -> int:
        """Start counting for `step`. Returns how many prompts to submit for a batch of `batch` prompts."""
        self.tally = Tally(step, batch)
        policy = self._policy()
        return policy.wanted(batch, len(self._ready), self._in_flight(), 0, self._acceptance.value, 0)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, float]]:
        """Wait for `batch_size` groups to train on. Returns their place in the queue (verl's replay buffer contract).

        Raises StoppedError when a stop is requested while waiting; at the cap SamplingExhaustedError or NothingLeft.
        """
        assert partition_id == TRAIN, "validation has its own path (trainers.validate)"
        policy = self._policy()
        while len(self._ready) < batch_size or (self._ahead and self._in_flight()):
            if current().stop.is_set():
                raise StoppedError
            if policy.starved(batch_size, len(self._ready), self._in_flight(), self.tally.generated):
                self._starve(batch_size)
                break
            count = policy.wanted(
                batch_size,
                len(self._ready),
                self._in_flight(),
                self._owed,
                self._acceptance.value,
                self.tally.generated,
            )
            if count:
                self._refill(count)
                self._owed = max(0, self._owed - count)
            self._owed += self._sort(policy, current().groups.take(TRAIN, WAKE_SECONDS))
        return self._hand_over(batch_size), {}

    def restore(self) -> None:
        """Use finished groups that were restored with a checkpoint, and remove what belongs to no prompt."""
        items = (tq.kv_list(TRAIN) or {}).get(TRAIN, {})
        prompts = {key: tag for key, tag in items.items() if tag.get("is_prompt")}
        orphans = [key for key in items if key not in prompts and key.split("_")[0] not in prompts]
        if orphans:
            tq.kv_clear(keys=orphans, partition_id=TRAIN)
        # verl has submitted the unfinished ones again by now: they will finish as new groups.
        in_flight = current().groups.uids_in_flight(TRAIN)
        finished = [
            _restored(uid, tag["outcome"], items)
            for uid, tag in prompts.items()
            if tag.get("status") == "finished" and uid not in in_flight
        ]
        kept = [outcome for outcome in finished if self._policy().keeps(outcome)]
        rejected = [outcome for outcome in finished if not self._policy().keeps(outcome)]
        self._ready += kept
        self._owed += len(rejected)
        self._clear(rejected)

    def _policy(self) -> Policy:
        # Separate pools split a step into several samples; the cap is for the whole step.
        cap = math.ceil(self._cap * self.tally.batch) if self._cap else None
        return Policy(keep_uniform=not self._enabled, max_generated=cap, ahead=self._ahead)

    def _in_flight(self) -> int:
        return current().groups.in_flight(TRAIN)

    def _sort(self, policy: Policy, outcomes: list[GroupOutcome]) -> int:
        """Keep the groups to train on and remove the others. Returns how many were rejected."""
        rejected: list[GroupOutcome] = []
        for outcome in outcomes:
            self.tally.add(outcome)
            kept = policy.keeps(outcome)
            self._acceptance.add(kept)
            (self._ready if kept else rejected).append(outcome)
        self._clear(rejected)
        return len(rejected)

    def _hand_over(self, count: int) -> KVBatchMeta:
        # Oldest first, so that a surplus group is at most one step behind the policy. With separate pools the prompts
        # in flight are limited already, and all mini-batches of a step take from the same groups.
        chosen, self._ready = self._ready[:count], self._ready[count:]
        if self._ahead:
            surplus, self._ready = self._ready[count:], self._ready[:count]
            self.tally.dropped += len(surplus)
            self._clear(surplus)
        self.tally.trained += len(chosen)
        tq.kv_clear(keys=[outcome.uid for outcome in chosen], partition_id=TRAIN)
        keys = [key for outcome in chosen for key in outcome.keys]
        return KVBatchMeta(partition_id=TRAIN, keys=keys, tags=[dict(t) for o in chosen for t in o.tags])

    @property
    def carried(self) -> int:
        """Groups that are kept for the next step."""
        return len(self._ready)

    def _clear(self, outcomes: list[GroupOutcome]) -> None:
        if outcomes:
            tq.kv_clear(keys=[k for o in outcomes for k in (o.uid, *o.keys)], partition_id=TRAIN)

    def _starve(self, needed: int) -> None:
        message = self._starvation(needed)
        if self._on_exhausted == "TrainPartial" and (self._ready or self.tally.trained):
            # The batch is trained without them: still owed, they would add prompts in flight to every later step.
            self._owed = max(0, self._owed - (needed - len(self._ready)))
            if not self.tally.starved:
                self.tally.starved = True
                step = self.tally.step
                current().report.event("Warning", "SamplingExhausted", f"{message}; training on these.", step)
            if not self._ready:
                raise NothingLeft
            return
        remedy = (
            "Use easier or harder prompts, or raise maxGenerationBatches."
            if self._enabled
            else "See the trainer's log for why responses are lost."
        )
        raise SamplingExhaustedError(f"{message}. {remedy}")

    def _starvation(self, needed: int) -> str:
        """Counted over the step, of which separate pools train one mini-batch at a time."""
        groups, trained = self.tally.groups, self.tally.trained
        what = "have both correct and wrong responses" if self._enabled else "could be scored"
        kinds = f"{groups[Kind.ALL_WRONG]} all wrong, {groups[Kind.ALL_RIGHT]} all right, {groups[Kind.LOST]} lost"
        return (
            f"After {self.tally.generated} prompts ({self._cap:g} batches) only {len(self._ready) + trained} of "
            f"{needed + trained} groups {what} ({kinds})"
        )


def _restored(uid: str, outcome: dict[str, Any], items: dict[str, dict[str, Any]]) -> GroupOutcome:
    members = tuple(sorted(key for key in items if key.startswith(f"{uid}_")))
    fields = {**outcome, "rewards": tuple(outcome["rewards"]), "lengths": tuple(outcome["lengths"])}
    return GroupOutcome(uid=uid, keys=members, tags=tuple(items[key] for key in members), **fields)


def stored(outcome: GroupOutcome) -> dict[str, Any]:
    """The part of an outcome that is stored in the prompt's tag, and so in a checkpoint of the queue."""
    fields = asdict(outcome)
    return {name: fields[name] for name in ("correct", "rewards", "lengths", "truncated", "failures")}
