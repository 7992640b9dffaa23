"""What vLLM's processor build is given: room for its cache, and outputs that are held back for several tokens."""

from types import ModuleType, SimpleNamespace
from typing import Any

import engines
import numpy as np
import pytest


@pytest.mark.parametrize(
    ("longest", "sequences", "block_sizes", "expected"),
    [(56, 256, [128], 257), (129, 2, [128], 5), (129, 2, [128, 16], 1 + 2 * (2 + 9))],
    ids=["a block each", "two blocks each", "two groups of layers"],
)
@pytest.mark.parametrize("allowed_blocks", [10_000, 4], ids=["enough memory", "too little memory"])
def test_the_cache_has_the_blocks_that_can_be_in_use_at_once(
    longest: int, sequences: int, block_sizes: list[int], expected: int, allowed_blocks: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    utils = engines.load("vllm.v1.core.kv_cache_utils")
    taken: list[int] = []
    monkeypatch.setattr(utils, "get_kv_cache_config_from_groups", lambda _, __, memory: taken.append(memory))
    monkeypatch.setattr(utils, "_get_kv_cache_bytes_per_block", lambda _: 1000)
    engines.load("dapo_trainer.verl_adapter.cpu_vllm").cap_kv_cache()
    config = SimpleNamespace(
        model_config=SimpleNamespace(max_model_len=longest), scheduler_config=SimpleNamespace(max_num_seqs=sequences)
    )
    groups: list[Any] = [SimpleNamespace(kv_cache_spec=SimpleNamespace(block_size=size)) for size in block_sizes]
    utils.get_kv_cache_config_from_groups(config, groups, allowed_blocks * 1000)
    assert taken == [1000 * min(expected, allowed_blocks)]


@pytest.fixture(scope="module")
def module() -> ModuleType:
    engines.load("vllm.v1.core.sched.scheduler")
    return engines.load("dapo_trainer.verl_adapter.cpu_vllm")


def request(*, at_its_end: bool = True, **changes: Any) -> Any:
    from vllm.sampling_params import RequestOutputKind, SamplingParams

    kind = RequestOutputKind.FINAL_ONLY if at_its_end else RequestOutputKind.CUMULATIVE
    options = {"detokenize": False, "logprobs": 0} | changes
    return SimpleNamespace(sampling_params=SamplingParams(output_kind=kind, **options))


def token(name: str, place: int, *, ends: bool = False, log_probs: bool = True) -> Any:
    from vllm.v1.engine import EngineCoreOutput, FinishReason
    from vllm.v1.outputs import LogprobsLists

    found = LogprobsLists(np.array([[place]]), np.array([[-place / 8]], dtype=np.float32), np.array([place + 1]))
    return EngineCoreOutput(
        request_id=name,
        new_token_ids=[place],
        new_logprobs=found if log_probs else None,
        finish_reason=FinishReason.STOP if ends else None,
        stop_reason=7 if ends else None,
    )


def generated(module: ModuleType, lengths: dict[str, int], **options: Any) -> tuple[list[Any], Any]:
    """All that is reported of requests that generate so many tokens, a step at a time."""
    held, reported = module.HeldOutputs(), []
    for place in range(max(lengths.values())):
        step = [token(n, place, ends=place + 1 == length, **options) for n, length in lengths.items() if place < length]
        goes_on = {name: request() for name, length in lengths.items() if place + 1 < length}
        reported += held.report(step, goes_on)
    return reported, held


@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 40])
@pytest.mark.parametrize("log_probs", [True, False], ids=["log-probs", "tokens alone"])
def test_all_tokens_are_reported_in_order(module: ModuleType, length: int, log_probs: bool) -> None:
    reported, held = generated(module, {"a": length, "b": 3}, log_probs=log_probs)
    of_a = [output for output in reported if output.request_id == "a"]
    assert len(of_a) == -(-length // module.MOST_HELD) and not held._held
    assert [token for output in of_a for token in output.new_token_ids] == list(range(length))
    assert [output.finished for output in of_a] == [False] * (len(of_a) - 1) + [True]
    assert of_a[-1].stop_reason == 7
    if log_probs:
        read = [value for output in of_a for value in output.new_logprobs.logprobs[:, 0].tolist()]
        assert read == [-place / 8 for place in range(length)]
        for output in of_a:
            assert output.new_logprobs.logprob_token_ids[:, 0].tolist() == output.new_token_ids
            assert output.new_logprobs.sampled_token_ranks.tolist() == [n + 1 for n in output.new_token_ids]
    else:
        assert all(output.new_logprobs is None for output in of_a)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param({"at_its_end": False}, id="read as it grows"),
        pytest.param({"detokenize": True}, id="text is searched for stops"),
        pytest.param({"prompt_logprobs": 0}, id="log-probs of the prompt"),
    ],
)
def test_other_requests_are_reported_at_once(module: ModuleType, asked: dict[str, Any]) -> None:
    held, step = module.HeldOutputs(), [token("a", 0)]
    assert held.report(step, {"a": request(**asked)}) == step


def test_nothing_is_kept_of_what_was_aborted(module: ModuleType) -> None:
    held = module.HeldOutputs()
    both = {"a": request(), "b": request()}
    assert held.report([token("a", 0), token("b", 0)], both) == []
    held.forget_all_but({"b": both["b"]})
    (reported,) = held.report([token("b", 1, ends=True)], {})
    assert reported.new_token_ids == [0, 1]
    (again,) = held.report([token("a", 5, ends=True)], {})
    assert again.new_token_ids == [5]


def test_what_is_said_once_is_kept(module: ModuleType) -> None:
    first, last = token("a", 0), token("a", 1, ends=True)
    first.prefill_stats, first.events, last.events = "of the prompt", ["queued"], ["done"]
    held = module.HeldOutputs()
    assert held.report([first], {"a": request()}) == []
    (reported,) = held.report([last], {})
    assert (reported.prefill_stats, reported.events) == ("of the prompt", ["queued", "done"])


def test_the_scheduler_holds(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine import EngineCoreOutputs

    steps = iter([[token("a", 0)], [token("a", 1, ends=True)]])
    monkeypatch.setattr(Scheduler, "update_from_output", lambda self, *_: {0: EngineCoreOutputs(outputs=next(steps))})
    monkeypatch.setattr(Scheduler, "finish_requests", lambda self, *_: [])
    module.hold_outputs()
    installed = Scheduler.update_from_output
    module.hold_outputs()
    assert Scheduler.update_from_output is installed  # once
    scheduler: Any = SimpleNamespace(requests={"a": request()})
    assert Scheduler.update_from_output(scheduler, None, None) == {}
    scheduler.requests = {}
    (outputs,) = Scheduler.update_from_output(scheduler, None, None).values()
    assert [output.new_token_ids for output in outputs.outputs] == [[0, 1]]
    Scheduler.finish_requests(scheduler, None, None)
