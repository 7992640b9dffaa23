"""verl's replay buffer, by groups: dynamic sampling with a cap, waves or immediate refills, mini-batches without order.

verl's own buffer ignores `max_num_gen_batches`, so that a collapsed policy is sampled forever, and hands groups over as
they finish, so that the first mini-batch has the shortest responses.
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import transfer_queue as tq
from transfer_queue import KVBatchMeta

from dapo_core.errors import SamplingExhaustedError, StoppedError
from dapo_core.run.recording import Fate
from dapo_trainer.groups.dynamic_sampling import Acceptance, GroupOutcome, Kind, Policy, Tally, shuffled
from dapo_trainer.verl_adapter.session import current
from dapo_trainer.verl_adapter.token_records import TokenRecords

TRAIN = "train"
WAKE_SECONDS = 0.5
# In the folder of a checkpoint. Not a .json: those are stored once for all checkpoints of a run.
STATE_FILE: Final = "sampling.state"
# Groups that the acceptance rate is averaged over: four batches, and of small batches enough for a stable estimate.
MEMORY_BATCHES, LEAST_MEMORY = 4, 256


class NothingLeft(Exception):
    """No group is left for a later mini-batch of a step, and the job allows training on a partial batch."""


class GroupBuffer:
    """Loaded by verl as `trainer.v1.sampler.custom_sampler`; constructor arguments are verl's."""

    def __init__(self, trainer_mode: str, refill_fn: Callable[[int], int], **_: Any) -> None:
        sampling = current().settings["dynamic_sampling"]
        self._refill = refill_fn
        self._enabled = bool(sampling["enabled"])
        self.filters_by_spread = self._enabled and sampling["filter_by"] == "spread"
        # Also without dynamic sampling: lost groups are replaced, and a reward that always fails loses all of them.
        self._cap = int(sampling["max_generation_batches"])
        self._on_exhausted = sampling["on_exhausted"]
        self._ahead = trainer_mode == "dapo_colocated"
        self._carries = self._ahead and sampling["surplus"] == "Carry"
        self._seed = int(current().settings["seed"])
        self._max_staleness: int | None = current().settings["max_staleness"]
        self._acceptance = Acceptance()
        self._ready: list[GroupOutcome] = []
        self._drawn: list[GroupOutcome] = []  # the rest of the step's batch, of which the next mini-batches are cut
        self._handed: list[GroupOutcome] = []  # handed over, and not trained on yet: a checkpoint would bring them back
        self._committed = False  # groups of the step have changed the policy
        self._owed = 0  # rejected groups for which no new prompt was submitted yet
        self.tally = Tally(0, 0)
        every, groups = (int(current().settings.get(name, 0)) for name in ("log_samples_every", "record_groups"))
        self.tokens = TokenRecords(every, groups)

    def begin_step(self, step: int, batch: int) -> int:
        """Start counting for `step`. Returns how many prompts to submit for a batch of `batch` prompts."""
        self.tally, self._committed = Tally(step, batch), False
        self.tokens.begin_step(step)
        self._acceptance.memory = max(MEMORY_BATCHES * batch, LEAST_MEMORY)
        policy = self._policy()
        return policy.wanted(batch, len(self._ready), self._in_flight(), 0, self._acceptance.value, 0)

    def sample(self, global_steps: int, partition_id: str, batch_size: int) -> tuple[KVBatchMeta, dict[str, float]]:
        """Wait for the step's batch. Returns where `batch_size` groups of it are (verl's replay buffer contract).

        Separate pools sample a step in mini-batches. The first waits for the whole batch too: cut from the groups that
        finish first, it would have the shortest responses, and a stop while the second waits would come amid a step.

        Raises StoppedError when a stop is requested while waiting; at the cap SamplingExhaustedError or NothingLeft.
        """
        assert partition_id == TRAIN, "validation has its own path (trainers.validate)"
        if not self._drawn:
            needed = max(batch_size, self.tally.batch - self.tally.trained)
            self._wait_for(needed)
            self._draw(needed)
        return self._hand_over(batch_size), {}

    def _wait_for(self, needed: int) -> None:
        """Until `needed` groups are ready, or the step's cap is reached. In waves all that was asked for is waited for:
        a choice among those that finish first would be a choice of short responses."""
        policy = self._policy()
        self._drop_stale()
        while len(self._ready) < needed or (self._ahead and self._in_flight()):
            if current().stop.is_set():
                raise StoppedError
            current().while_waiting()
            if not self._in_flight():
                self._acceptance.end_wave()
            if policy.starved(needed, len(self._ready), self._in_flight(), self.tally.generated):
                self._starve(needed)
                break
            count = policy.wanted(
                needed,
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
            self._drop_stale()
        if not self._in_flight():
            self._acceptance.end_wave()

    def stop_if_asked(self) -> None:
        """Raises StoppedError when a stop was requested and the groups handed over are in the queue as they came: the
        next attempt trains on them."""
        if current().stop.is_set() and not self._committed:
            raise StoppedError

    def commit(self) -> None:
        """Called before the groups handed over change the policy: afterwards no checkpoint brings them back.

        Raises StoppedError when a stop was requested and nothing of the step has changed the policy. The next attempt
        generates the groups again then: their rows have log-probs, and could not be mixed with rows that have none.
        """
        handed, self._handed = self._handed, []
        prompts = [outcome.uid for outcome in handed]
        if current().stop.is_set() and not self._committed:
            tags = [{"is_prompt": True, "status": "pending", "global_steps": self.tally.step} for _ in prompts]
            tq.kv_batch_put(keys=prompts, partition_id=TRAIN, tags=tags)
            tq.kv_clear(keys=[key for outcome in handed for key in outcome.keys], partition_id=TRAIN)
            raise StoppedError
        self._committed = True
        tq.kv_clear(keys=prompts, partition_id=TRAIN)

    def save(self, folder: Path) -> None:
        """Write what `recall` reads to the folder of a checkpoint."""
        (folder / STATE_FILE).write_text(json.dumps(self._acceptance.saved()))

    def recall(self, folder: Path) -> None:
        """Use the acceptance rate that was saved with a checkpoint; one of an older version has none."""
        path = folder / STATE_FILE
        if path.exists():
            self._acceptance.restore(json.loads(path.read_text()))

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
        return Policy(
            keep_uniform=not self._enabled, max_generated=cap, ahead=self._ahead, by_spread=self.filters_by_spread
        )

    def _in_flight(self) -> int:
        return current().groups.in_flight(TRAIN)

    def _sort(self, policy: Policy, outcomes: list[GroupOutcome]) -> int:
        """Keep the groups to train on and remove the others. Returns how many were rejected."""
        rejected: list[GroupOutcome] = []
        for outcome in outcomes:
            kept = policy.keeps(outcome)
            self.tally.add(outcome, kept)
            self._acceptance.add(kept)
            (self._ready if kept else rejected).append(outcome)
        current().records.decided(rejected)
        self.tokens.leave_out(rejected, TRAIN, current().records)
        self._clear(rejected)
        return len(rejected)

    def _drop_stale(self) -> None:
        """Remove the groups that were sampled from weights too old for the step; new prompts take their place."""
        if self._max_staleness is None:
            return
        oldest = self.tally.step - 1 - self._max_staleness  # an engine has the version of the step before
        fresh = [outcome for outcome in self._ready if outcome.oldest_version >= oldest]
        stale = [outcome for outcome in self._ready if outcome.oldest_version < oldest]
        self._ready = fresh
        self.tally.stale += len(stale)
        self._owed += len(stale)
        current().records.decided(stale, Fate.STALE)
        self._clear(stale)

    def _draw(self, count: int) -> None:
        """Choose the step's groups, in an order of their own.

        In waves by the order of submission, oldest first, so that a carried group is at most one step behind the policy
        and length has no say. With separate pools as they finish; those that are left wait for the next step.
        """
        if self._ahead:
            self._ready.sort(key=lambda outcome: outcome.order)
        self._drawn, self._ready = self._ready[:count], self._ready[count:]
        # Separate pools compute advantages by mini-batch: a group may not be cut in two.
        self._drawn = shuffled(self._drawn, self._seed, self.tally.step)
        if self._ahead:
            kept = count if self._carries else 0
            surplus, self._ready = self._ready[kept:], self._ready[:kept]
            self.tally.dropped += len(surplus)
            current().records.decided(surplus, Fate.SURPLUS)
            self._clear(surplus)

    def _hand_over(self, count: int) -> KVBatchMeta:
        chosen, self._drawn = self._drawn[:count], self._drawn[count:]
        self.tally.trained += len(chosen)
        self._handed += chosen
        current().records.decided(chosen, Fate.TRAINED)
        rows = [row for outcome in chosen for row in zip(outcome.keys, outcome.tags, strict=True)]
        # verl cuts mini-batches from the rows in this order, group or not.
        rows = shuffled(rows, self._seed, self.tally.step)
        return KVBatchMeta(partition_id=TRAIN, keys=[key for key, _ in rows], tags=[dict(tag) for _, tag in rows])

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
            if not self.tally.starved:
                self.tally.starved = True
                # The batch is trained without them: still owed, they would add prompts in flight to every later step.
                self._owed = max(0, self._owed - (needed - len(self._ready)))
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
        worth = "responses of different scores" if self.filters_by_spread else "both correct and wrong responses"
        what = f"have {worth}" if self._enabled else "could be scored"
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
    kept = ("correct", "rewards", "lengths", "truncated", "failures", "spread", "nll")
    return {name: fields[name] for name in kept}
