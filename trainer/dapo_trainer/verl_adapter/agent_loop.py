"""Prompts in, scored groups out: verl's agent loop, with one task per group instead of one actor call per response.

It runs on an event loop in a thread of the driver. Its own work is small (tokenize a prompt, decode and score its
responses); vLLM generates, and finished groups are put into TransferQueue together.
"""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData, NonTensorStack
from verl.utils import hf_tokenizer
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from dapo_core.run.entries import Sample
from dapo_trainer.groups.dynamic_sampling import GroupOutcome
from dapo_trainer.groups.evaluated import Evaluated
from dapo_trainer.groups.group_records import ScoredGroup, ScoredResponse, check_text
from dapo_trainer.rewards.scorer import Scored, Scorer
from dapo_trainer.rewards.verdict import ResponseGroup
from dapo_trainer.verl_adapter import published_rule
from dapo_trainer.verl_adapter.group_buffer import TRAIN, stored
from dapo_trainer.verl_adapter.group_client import GroupClient
from dapo_trainer.verl_adapter.group_server import Response
from dapo_trainer.verl_adapter.session import current

VALIDATION = "val"
Row = dict[str, Any]


@dataclass(frozen=True)
class JudgedResponse:
    """A response with its score; `truncated`: it reached the limit of tokens."""

    response: Response
    text: str
    scored: Scored
    truncated: bool

    @property
    def tokens(self) -> int:
        return len(self.response.token_ids)

    def sample(self, prompt: str, truth: str) -> Sample:
        verdict, reward = self.scored.verdict, self.scored.reward
        details = json.dumps(verdict.details) if verdict.details else ""
        return Sample(prompt, self.text, truth, reward, float(verdict.correct), self.tokens, self.truncated, details)


class GroupAgentLoopManager:
    """Loaded by verl as `rollout.agent.agent_loop_manager_class`."""

    def __init__(self, config: Any, llm_client: GroupClient) -> None:
        self._config, self._client = config.actor_rollout_ref.rollout, llm_client
        self._settings: Mapping[str, Any] = current().settings
        self._tokenizer = hf_tokenizer(config.actor_rollout_ref.model.path)
        self._scorer = Scorer(self._settings, published_rule.judge)
        self._loop = asyncio.new_event_loop()
        self._outbox: asyncio.Queue[tuple[GroupOutcome, list[Row]]] = asyncio.Queue()
        threading.Thread(target=self._loop.run_forever, name="agent-loop", daemon=True).start()
        self._spawn(self._post())

    @classmethod
    def create(cls, config: Any, llm_client: GroupClient, **_: Any) -> "GroupAgentLoopManager":
        return cls(config, llm_client)

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start a group for each prompt and return at once (verl's contract); outcomes go to the session's groups."""
        shared = {k: v.data for k, v in prompts.items() if isinstance(v, NonTensorData)}
        columns = {k: list(v) for k, v in prompts.items() if isinstance(v, NonTensorStack)}
        partition = VALIDATION if shared.get("validate") else TRAIN
        rows = [shared | {name: _plain(values[i]) for name, values in columns.items()} for i in range(len(prompts))]
        current().groups.submit(partition, [row["uid"] for row in rows])
        self._spawn(self._run_all(partition, rows))

    def close(self) -> None:
        """Stop the loop and the reward processes; groups in flight are abandoned."""
        asyncio.run_coroutine_threadsafe(self._scorer.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _spawn(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).add_done_callback(_report_crash)

    async def _run_all(self, partition: str, rows: list[Row]) -> None:
        """Begun together, so that the client asks for all of them in one call."""
        await asyncio.gather(*(self._run(partition, row) for row in rows))

    async def _run(self, partition: str, row: Row) -> None:
        prompt = self._tokenizer.apply_chat_template(
            list(row["raw_prompt"]), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        sampling, count = self._sampling(partition, row)
        submitted_at = time.time()
        responses = await self._client.generate_group(prompt, count, self._config.response_length, sampling)
        judged = await self._judge(row, responses)
        if self._wants_samples(partition, row):
            current().samples.extend((partition, one.sample(_prompt(row), _truth(row))) for one in judged)
        if partition == VALIDATION:
            current().evaluated.append(_evaluated(row, judged))
            current().groups.finish(VALIDATION, [_outcome(row["uid"], judged, [])])
            return
        current().records.scored(_scored_group(row, judged, submitted_at))
        members = self._members(row, prompt, judged)
        await self._outbox.put((_outcome(row["uid"], judged, members), members))

    async def _judge(self, row: Row, responses: list[Response]) -> list[JudgedResponse]:
        texts = [self._tokenizer.decode(r.token_ids, skip_special_tokens=True) for r in responses]
        lengths = [len(r.token_ids) for r in responses]
        group = ResponseGroup(_prompt(row), texts, _truth(row), _extra_info(row))
        scored = await self._scorer.score(group, lengths)
        return [
            JudgedResponse(response, text, score, self._truncated(response))
            for response, text, score in zip(responses, texts, scored, strict=True)
        ]

    def _truncated(self, response: Response) -> bool:
        """Cut at the limit. A model may end with other tokens than the tokenizer's, so a shorter one never counts."""
        full = len(response.token_ids) >= self._config.response_length
        return bool(full and response.token_ids[-1] != self._tokenizer.eos_token_id)

    def _sampling(self, partition: str, row: Row) -> tuple[dict[str, Any], int]:
        rollout = self._config
        if partition == VALIDATION:
            chosen = self._settings["validation"][row["data_source"]]
            return {"temperature": chosen["temperature"], "top_p": chosen["top_p"]}, chosen["n"]
        return {"temperature": rollout.temperature, "top_p": rollout.top_p, "top_k": -1, "logprobs": True}, rollout.n

    def _wants_samples(self, partition: str, row: Row) -> bool:
        every = self._settings["log_samples_every"]
        return bool(every) and (partition == VALIDATION or row["global_steps"] % every == 0)

    def _members(self, row: Row, prompt: list[int], judged: list[JudgedResponse]) -> list[Row]:
        """Queue rows of the responses that count; a truncated one has no loss when the overlong filter is on."""
        masks = self._settings["overlong"]["filter"]
        return [
            _member(row, index, prompt, response, masked=masks and response.truncated)
            for index, response in enumerate(judged)
            if response.scored.counted and response.tokens
        ]

    async def _post(self) -> None:
        """Put finished groups into the queue, all that wait at a time, then report them as finished."""
        while True:
            batch = [await self._outbox.get()]
            while not self._outbox.empty():
                batch.append(self._outbox.get_nowait())
            members = [member for _, group in batch for member in group]
            if members:
                await tq.async_kv_batch_put(
                    keys=[m["key"] for m in members],
                    partition_id=TRAIN,
                    fields=list_of_dict_to_tensordict([m["fields"] for m in members]),
                    tags=[m["tag"] for m in members],
                )
            outcomes = [outcome for outcome, _ in batch]
            await tq.async_kv_batch_put(
                keys=[o.uid for o in outcomes],
                partition_id=TRAIN,
                tags=[{"status": "finished", "outcome": stored(o)} for o in outcomes],
            )
            current().groups.finish(TRAIN, outcomes)


def _plain(value: Any) -> Any:
    return getattr(value, "data", value) if isinstance(value, NonTensorData) else value


def _report_crash(future: Any) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        current().groups.fail(error)


def _prompt(row: Row) -> str:
    return str(row["raw_prompt"][-1]["content"])


def _truth(row: Row) -> str:
    return str(row["reward_model"]["ground_truth"])


def _extra_info(row: Row) -> dict[str, Any]:
    """Empty for a prompt of a checkpoint that was saved before rows had it."""
    found: dict[str, Any] = json.loads(row["extra_info"].get("json", "{}"))
    return found


def _evaluated(row: Row, judged: list[JudgedResponse]) -> Evaluated:
    return Evaluated(
        set_name=row["data_source"],
        verdicts=[response.scored.verdict for response in judged],
        lengths=[response.tokens for response in judged],
        truncated=[response.truncated for response in judged],
        index=int(row["index"]),
    )


def _scored_group(row: Row, judged: list[JudgedResponse], submitted_at: float) -> ScoredGroup:
    return ScoredGroup(
        uid=row["uid"],
        source=str(row.get("data_source", "")),
        prompt=_prompt(row),
        ground_truth=_truth(row),
        responses=tuple(
            ScoredResponse(
                reward=response.scored.reward,
                correct=response.scored.verdict.correct,
                truncated=response.truncated,
                check=check_text(response.scored.verdict),
                counted=response.scored.counted,
            )
            for response in judged
        ),
        submitted_at=submitted_at,
        finished_at=time.time(),
    )


def _outcome(uid: str, judged: list[JudgedResponse], members: list[Row]) -> GroupOutcome:
    counted = [response for response in judged if response.scored.counted]
    scores = [response.scored.verdict.score for response in counted]
    terms: Counter[str] = Counter()
    for response in counted:
        terms.update(response.scored.terms)
    return GroupOutcome(
        uid=uid,
        correct=sum(response.scored.verdict.correct for response in counted),
        rewards=tuple(response.scored.reward for response in counted),
        lengths=tuple(response.tokens for response in counted),
        truncated=sum(response.truncated for response in judged),
        failures=sum(response.scored.verdict.failure is not None for response in judged),
        spread=max(scores, default=0.0) - min(scores, default=0.0),
        terms=terms,
        nll=-sum(sum(response.response.log_probs) for response in counted),
        keys=tuple(member["key"] for member in members),
        tags=tuple(member["tag"] for member in members),
    )


def _member(row: Row, index: int, prompt: list[int], judged: JudgedResponse, masked: bool) -> Row:
    """One response as a row of the trainer's queue: verl's field names, tags, and key `{uid}_{session}_{index}`."""
    response = judged.response
    prompts, responses = torch.tensor(prompt), torch.tensor(response.token_ids)
    rewards = torch.zeros(len(responses))
    rewards[-1] = judged.scored.reward
    mask = torch.zeros_like(responses) if masked else torch.ones_like(responses)
    total = len(prompts) + len(responses)
    fields = {
        "uid": row["uid"],
        "prompts": prompts,
        "responses": responses,
        "input_ids": torch.cat([prompts, responses]),
        "position_ids": torch.arange(total),
        "response_mask": mask,
        "loss_mask": mask,
        "rm_scores": rewards,
        "rollout_log_probs": torch.tensor(response.log_probs, dtype=torch.float32),
        "num_turns": 2,
        "multi_modal_inputs": {},
    }
    tag = {
        "status": "success",
        "prompt_len": len(prompts),
        "response_len": len(responses),
        "seq_len": total,
        "loss_tokens": int(mask.sum()),
        "correct": judged.scored.verdict.correct,
        "truncated": judged.truncated,
        "global_steps": row["global_steps"],
        "min_global_steps": response.versions[0],
        "max_global_steps": response.versions[1],
    }
    return {"key": f"{row['uid']}_{index}_0", "fields": fields, "tag": tag}
