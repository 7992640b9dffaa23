"""Which tokens of recorded responses were clipped, kept by the rank that trained on them until the driver asks.

verl's losses give sums alone. The tensors of a micro-batch are here while its loss is computed, in the order of its
rows, and the rows are known by the prompt that they belong to.
"""

import logging
import zlib
from typing import Any, Final

import numpy as np
import torch

log = logging.getLogger(__name__)
ASKED: Final = "recorded_uids"  # among what verl hands to the ranks with a batch; with spaces between them
Marks = dict[tuple[str, int], list[int]]
"""By prompt and fingerprint of the response, for each token: 1 above the upper bound, -1 below the lower, 0 within."""

_marks: Marks = {}
_of_loss: list[tuple[torch.Tensor, torch.Tensor]] = []  # of the newest micro-batch


def fingerprint(token_ids: Any) -> int:
    """By which ranks and driver know a response of a group; `token_ids` is an array."""
    return zlib.crc32(np.ascontiguousarray(token_ids, dtype=np.int64).tobytes())


def note(high: torch.Tensor, low: torch.Tensor) -> None:
    """The clipped tokens of a micro-batch, [responses, tokens], while its loss is computed."""
    _of_loss[:] = [(high, low)]


def keep(micro_batch: Any) -> None:
    """The loss of `micro_batch` was computed: keep what was noted of the responses that the driver asked for.

    A failure costs the marks alone."""
    noted = _of_loss.pop() if _of_loss else None
    try:
        _keep(micro_batch, noted)
    except Exception:
        log.exception("Clipped tokens are not recorded.")


def _keep(micro_batch: Any, noted: tuple[torch.Tensor, torch.Tensor] | None) -> None:
    asked = micro_batch.get(ASKED, None)
    if asked is None or noted is None or "uid" not in micro_batch.keys():
        return
    wanted = set(str(getattr(asked, "data", asked)).split())  # a str, or wrapped in NonTensorData
    high, low = noted
    uids = [str(getattr(uid, "data", uid)) for uid in micro_batch["uid"]]
    for row, (uid, tokens) in enumerate(zip(uids, micro_batch["responses"].unbind(), strict=True)):
        if uid in wanted:
            clipped = high[row, : len(tokens)].to(torch.int8) - low[row, : len(tokens)].to(torch.int8)
            _marks[uid, fingerprint(tokens.cpu().numpy())] = clipped.tolist()


def take_marks(_worker: Any) -> Marks:
    """What this rank kept; it is empty afterwards. Called in the rank's process."""
    taken = dict(_marks)
    _marks.clear()
    return taken
