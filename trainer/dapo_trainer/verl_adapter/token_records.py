"""The tokens of a few groups of a step, out of the trainer's queue: what both policies thought of each.

The rows are read before the step's updates, where all of their fields are in the queue. Which tokens were clipped is
known to the ranks alone, at the update that a response is part of; they keep it until they are asked.
"""

import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import ray
import torch
import transfer_queue as tq
from transfer_queue import KVBatchMeta

from dapo_core.run.recording import MAX_TOKENS, RecordedResponse
from dapo_trainer.groups.dynamic_sampling import GroupOutcome
from dapo_trainer.groups.group_records import GroupRecords, ScoredGroup
from dapo_trainer.verl_adapter.clip_marks import ASKED, Marks, fingerprint, take_marks

log = logging.getLogger(__name__)

Decode = Callable[[list[list[int]]], list[str]]
"""Token ids of several texts -> the texts."""
_ALWAYS: Final = ("prompts", "responses", "response_mask", "rollout_log_probs")
# In the queue once the trainer has computed them, and not in every job.
_TRAINERS: Final = ("advantages", "old_log_probs", "entropy", "rollout_is_weights")
_DIGITS: Final = 4  # of log-probs: more than one can see, and twice the bytes


@dataclass
class _Row:
    """A response out of the queue; `fields` has one array for each field, [tokens]."""

    uid: str
    number: int
    scored: ScoredGroup | None
    fields: Mapping[str, np.ndarray[Any, Any]]
    clipped: list[int] = field(default_factory=list)

    @property
    def mark(self) -> tuple[str, int]:
        return self.uid, fingerprint(self.fields["responses"])


@dataclass
class TokenRecords:
    """What is recorded token by token: `groups` of each step that is a multiple of `every`, and one that was left out.

    `own_log_probs`: the trainer computes log-probs of its own.
    """

    every: int
    groups: int
    own_log_probs: bool = True
    _wanted: int = 0
    _left_out: int = 0
    _tokens: int = 0
    _rows: list[_Row] = field(default_factory=list)

    @contextmanager
    def unless_it_fails(self) -> Iterator[None]:
        """Around all that reads and asks: nothing more is recorded after a failure, and training goes on."""
        try:
            yield
        except Exception:
            log.exception("Tokens are not recorded any more.")
            self.groups = self._wanted = self._left_out = 0
            self._rows = []

    def begin_step(self, step: int) -> None:
        """Forget the step before."""
        self._rows, self._tokens = [], 0
        self._wanted = self.groups if self.every and step % self.every == 0 else 0
        self._left_out = min(1, self._wanted)

    @property
    def uids(self) -> list[str]:
        """The groups that are recorded so far."""
        return list(dict.fromkeys(row.uid for row in self._rows))

    def leave_out(self, outcomes: Sequence[GroupOutcome], partition: str, records: GroupRecords) -> None:
        """Groups that are not trained on are about to be removed from the queue."""
        with self.unless_it_fails():
            for outcome in [outcome for outcome in outcomes if outcome.keys][: self._left_out]:
                self._left_out -= 1
                self._read(outcome.uid, outcome.keys, partition, (), records.of(outcome.uid))

    def before_update(self, batch: KVBatchMeta, records: GroupRecords) -> None:
        """A batch is about to be trained on, in which the trainer's own fields are complete."""
        with self.unless_it_fails():
            groups: dict[str, list[str]] = {}
            for key, tag in zip(batch.keys, batch.tags, strict=True):
                if not tag.get("is_padding", False):
                    groups.setdefault(key.rsplit("_", 2)[0], []).append(key)
            # By a number that a prompt has at every step: what is seen again is recorded again.
            chosen = sorted(groups, key=lambda uid: _number(uid, records.of(uid)))[: self._wanted]
            for uid in chosen:
                self._wanted -= 1
                self._read(uid, groups[uid], batch.partition_id, _TRAINERS, records.of(uid))
            if chosen:
                batch.extra_info[ASKED] = " ".join(chosen)

    def after_update(self, ranks: Any) -> None:
        """Ask the ranks, a worker group of verl, which tokens were clipped."""
        with self.unless_it_fails():
            rows = [row for row in self._rows if not row.clipped and "advantages" in row.fields]
            if not rows:
                return
            marks: Marks = {}
            for found in ray.get([worker.__ray_call__.remote(take_marks) for worker in ranks.workers]):
                marks |= found
            for row in rows:
                row.clipped = marks.get(row.mark, [])

    def _read(
        self, uid: str, keys: Sequence[str], partition: str, more: Sequence[str], scored: ScoredGroup | None
    ) -> None:
        ordered = sorted(keys, key=_number_of)
        data = _of_queue(ordered, partition, _ALWAYS, more)
        for row, key in enumerate(ordered):
            fields = {name: values[row] for name, values in data.items()}
            self._tokens += len(fields["responses"])
            if self._tokens > MAX_TOKENS:
                return
            self._rows.append(_Row(uid, _number_of(key), scored, fields))

    def responses(self, decode: Decode) -> list[RecordedResponse]:
        """The recorded responses. May be called in another thread, once the step has ended."""
        pieces = _Pieces(decode)
        return [self._response(row, decode, pieces) for row in self._rows]

    def take(self) -> "TokenRecords":
        """The step's records, for another thread; this one is empty."""
        taken = TokenRecords(self.every, self.groups, self.own_log_probs, _rows=self._rows)
        self._rows = []
        return taken

    def _response(self, row: _Row, decode: Decode, pieces: "_Pieces") -> RecordedResponse:
        tokens = row.fields["responses"]
        scored = row.scored
        known = scored is not None and row.number < len(scored.responses)
        of_response = scored.responses[row.number] if scored is not None and known else None
        mask = row.fields["response_mask"].astype(bool)
        advantages = row.fields.get("advantages", np.zeros(0))
        return RecordedResponse(
            uid=row.uid,
            number=row.number,
            prompt=scored.prompt if scored is not None else decode([row.fields["prompts"].tolist()])[0],
            response=decode([tokens.tolist()])[0],
            ground_truth="" if scored is None else scored.ground_truth,
            source="" if scored is None else scored.source,
            reward=float("nan") if of_response is None else of_response.reward,
            advantage=float(advantages[mask.argmax()]) if len(advantages) else None,
            correct=of_response is not None and of_response.correct,
            truncated=of_response is not None and of_response.truncated,
            check="" if of_response is None else of_response.check,
            token_ids=tokens.tolist(),
            pieces=pieces.of(tokens),
            rollout_log_probs=_rounded(row.fields.get("rollout_log_probs")),
            trainer_log_probs=_rounded(row.fields.get("old_log_probs") if self.own_log_probs else None),
            weights=_rounded(row.fields.get("rollout_is_weights")),
            entropies=_rounded(row.fields.get("entropy")),
            has_loss=mask.tolist(),
            clipped=row.clipped,
        )


class _Pieces:
    """What each token is in a text; every token id is decoded once."""

    def __init__(self, decode: Decode) -> None:
        self._decode = decode
        self._known: dict[int, str] = {}

    def of(self, token_ids: np.ndarray[Any, Any]) -> list[str]:
        new = [each for each in dict.fromkeys(token_ids.tolist()) if each not in self._known]
        if new:
            self._known |= dict(zip(new, self._decode([[each] for each in new]), strict=True))
        return [self._known[each] for each in token_ids.tolist()]


def _of_queue(
    keys: list[str], partition: str, always: Sequence[str], more: Sequence[str]
) -> dict[str, list[np.ndarray[Any, Any]]]:
    """The fields of rows, as arrays; those of `more` that the job has."""
    data = dict(tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=list(always)).items())
    for name in more:
        try:
            data |= tq.kv_batch_get(keys=keys, partition_id=partition, select_fields=[name]).items()
        except ValueError:
            continue
    return {name: [np.asarray(_plain(row)) for row in values.unbind()] for name, values in data.items()}


def _plain(row: torch.Tensor) -> Any:
    return row.detach().cpu().float().numpy() if row.is_floating_point() else row.detach().cpu().numpy()


def _number_of(key: str) -> int:
    return int(key.rsplit("_", 2)[1])


def _number(uid: str, scored: ScoredGroup | None) -> int:
    return zlib.crc32((uid if scored is None else scored.prompt).encode("utf-8", "replace"))


def _rounded(values: np.ndarray[Any, Any] | None) -> list[float]:
    return [] if values is None else np.round(values.astype(np.float64), _DIGITS).tolist()
