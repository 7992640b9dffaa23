"""verl's own vLLM server, as our groups use it, over a stub engine whose outputs the test releases."""

import asyncio
from types import ModuleType, SimpleNamespace
from typing import Any

import engines
import pytest

TOKENS = [7, 8]
REFUSED = [13]


class Engine:
    """Holds requests until `finish`; a pause aborts them, with the tokens that they have."""

    def __init__(self, server: Any) -> None:
        self.server, self.errored = server, False
        self.requests: dict[str, Any] = {}
        self.output_processor = SimpleNamespace(request_states=self.requests)
        self.admitting_at_pause: int | None = None
        self.aborted: list[str] = []
        self.flat: list[bool] = []
        self.copied: list[bool] = []

    async def add_request(self, request_id: str, prompt: Any, params: Any, **_: Any) -> Any:
        from vllm.v1.engine.output_processor import RequestOutputCollector

        assert prompt["type"] == "token", "vLLM would have another thread render it"
        if request_id == "refused" or prompt["prompt_token_ids"] == REFUSED:
            raise ValueError("no such prompt")
        self.flat.append(params.flat_logprobs)
        self.copied.append(not params.skip_clone)
        self.requests[request_id] = RequestOutputCollector(params.output_kind, request_id)
        return self.requests[request_id]

    def finish(self, reason: str, most: int | None = None) -> None:
        """The oldest requests, at most so many."""
        from vllm.logprobs import FlatLogprobs, Logprob

        for name in list(self.requests)[:most]:
            collector = self.requests.pop(name)
            log_probs = FlatLogprobs()
            log_probs.extend([{token: Logprob(-0.5)} for token in TOKENS])
            answer = SimpleNamespace(token_ids=TOKENS, logprobs=log_probs, finish_reason=reason)
            collector.put(SimpleNamespace(outputs=[answer], finished=True, num_cached_tokens=0, prompt_logprobs=None))

    async def abort(self, request_id: str, internal: bool) -> None:
        self.aborted.append(request_id)
        self.requests.pop(request_id, None)

    async def pause_generation(self, **_: Any) -> None:
        self.admitting_at_pause = self.server._admitting
        self.finish("abort")


@pytest.fixture
def adapter() -> ModuleType:
    return engines.load("dapo_trainer.verl_adapter.group_server")


@pytest.fixture
def server(adapter: ModuleType) -> Any:
    """verl's class without its constructor, which starts an engine."""
    made = object.__new__(adapter.GroupServer)
    config = SimpleNamespace(
        max_model_len=64,
        full_determinism=False,
        enable_rollout_routing_replay=False,
        mtp=None,
        get=lambda _name, default: default,
    )
    vars(made).update(
        _disaggregation_role=None,
        _admitting=0,
        _submission_paused=False,
        _rejecting=False,
        _resume_event=asyncio.Event(),
        node_rank=0,
        replica_rank=0,
        global_steps=3,
        config=config,
        model_config=SimpleNamespace(processor=None, lora_rank=0, lora={}),
    )
    made.engine = adapter.AnnouncingEngine(Engine(made))
    return made


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


SAMPLING = {"temperature": 1.0, "top_p": 1.0, "top_k": -1, "logprobs": True}


def request(*prompts: list[int]) -> Any:
    group_request = engines.load("dapo_trainer.verl_adapter.group_server").GroupRequest
    return group_request(prompts, [8] * len(prompts), SAMPLING)


async def the_only_group(server: Any, asked: Any) -> list[Any]:
    [[(place, responses)]] = [finished async for finished in server.generate_groups([asked])]
    assert place == 0
    return list(responses)


def test_token_ids_are_rendered_as_vllm_renders_them(adapter: ModuleType) -> None:
    """With the optional parts empty, as verl gives them."""
    from vllm.inputs import TokensPrompt
    from vllm.renderers.base import BaseRenderer

    prompt = TokensPrompt(prompt_token_ids=[5, 6], multi_modal_data={})
    assert adapter.rendered(prompt) == BaseRenderer._process_tokens(SimpleNamespace(), prompt)


@pytest.mark.parametrize(
    "more",
    [{"multi_modal_data": {"image": [1]}}, {"mm_processor_kwargs": {"fps": 2}}, {"cache_salt": "a"}],
    ids=["images", "settings for images", "a salt"],
)
def test_other_prompts_are_left_to_vllm(adapter: ModuleType, more: dict[str, Any]) -> None:
    prompt = {"prompt_token_ids": [5, 6], **more}
    assert adapter.rendered(prompt) is prompt


def test_b4_a_weight_update_does_not_wait_for_what_is_being_generated(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """verl gives up the wait after a minute; here sooner, and then with requests that it takes for not admitted."""
    monkeypatch.setattr("verl.workers.rollout.vllm_rollout.vllm_async_server._GATE_BARRIER_TIMEOUT_S", 0.2)

    async def scene() -> list[Any]:
        group = asyncio.ensure_future(the_only_group(server, request([1, 2], [1, 2])))
        await settle()
        assert len(server.engine.requests) == 2
        await server.abort_all_requests()
        return await group

    responses = asyncio.run(scene())
    assert server.engine.admitting_at_pause == 0, "each was in the engine, and counted as still on its way there"
    assert [(r.token_ids, r.log_probs, r.finished, r.versions) for r in responses] == [
        (TOKENS, [-0.5, -0.5], False, (3, 3))
    ] * 2, "what was generated is kept"


def test_a_group_is_finished_when_its_last_response_is(server: Any) -> None:
    async def scene() -> list[Any]:
        group = asyncio.ensure_future(the_only_group(server, request([1], [1])))
        await settle()
        assert server._admitting == 0 and not group.done()
        server.engine.finish("stop")
        return await group

    assert [response.finished for response in asyncio.run(scene())] == [True, True]
    assert server.engine.flat == [True, True], "S8: vLLM keeps two objects for each token otherwise"
    assert server.engine.copied == [False, False], "verl makes the settings of a request for it alone"
    assert server.engine.aborted == []


def test_groups_of_one_call_are_reported_as_they_finish(server: Any) -> None:
    async def scene() -> list[list[int]]:
        reports: list[list[int]] = []

        async def read() -> None:
            async for finished in server.generate_groups([request([place]) for place in range(4)]):
                reports.append(sorted(place for place, _ in finished))

        reader = asyncio.ensure_future(read())
        await settle()
        assert reports == []
        server.engine.finish("stop", most=1)
        await settle()
        assert reports == [[0]], "the others are still generated"
        server.engine.finish("stop", most=2)
        await settle()
        server.engine.finish("stop")
        await reader
        return reports

    assert asyncio.run(scene()) == [[0], [1, 2], [3]], "those that finish at the same time share a report"


def test_a_prompt_that_the_engine_refuses_ends_the_call_and_what_it_generates(server: Any) -> None:
    async def scene() -> None:
        with pytest.raises(ValueError, match="no such prompt"):
            async for _ in server.generate_groups([request([1]), request(REFUSED)]):
                pass
        await settle()

    asyncio.run(scene())
    assert len(server.engine.aborted) == 1 and server._admitting == 0


def test_what_the_engine_does_not_take_is_no_longer_on_its_way(server: Any) -> None:
    async def scene() -> None:
        with pytest.raises(ValueError, match="no such prompt"):
            await server.generate([1], {**SAMPLING, "max_tokens": 8}, request_id="refused")

    asyncio.run(scene())
    assert server._admitting == 0


def test_a_request_whose_caller_is_gone_is_aborted(server: Any) -> None:
    async def scene() -> None:
        call = asyncio.ensure_future(server.generate([1], {**SAMPLING, "max_tokens": 8}, request_id="left"))
        await settle()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await settle()

    asyncio.run(scene())
    assert server.engine.aborted == ["left"]
