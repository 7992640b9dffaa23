"""Prompts in, scored groups out: verl's agent loop, one task a group instead of one actor call a response.

It runs on an event loop in a thread of the driver. The work it does itself is small (tokenise a prompt, decode and
score its responses); generation is vLLM's, and a group's tensors go to TransferQueue in one put with its neighbours'.
"""

import asyncio
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData, NonTensorStack
from verl.utils import hf_tokenizer
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from dapo_core.run.samples import Sample
from dapo_trainer.groups.dynamic_sampling import GroupOutcome
from dapo_trainer.groups.evaluated import Evaluated
from dapo_trainer.rewards.scorer import Scored, Scorer
from dapo_trainer.verl_adapter.group_buffer import TRAIN, stored
from dapo_trainer.verl_adapter.group_server import GroupClient, Response
from dapo_trainer.verl_adapter.session import current

VALIDATION = "val"
Row = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A response that has been judged; `truncated`: it ran into the limit of tokens."""

    response: Response
    text: str
    scored: Scored
    truncated: bool

    @property
    def tokens(self) -> int:
        return len(self.response.token_ids)

    def sample(self, question: str, truth: str) -> Sample:
        verdict, reward = self.scored.verdict, self.scored.reward
        details = json.dumps(verdict.details) if verdict.details else ""
        return Sample(question, self.text, truth, reward, float(verdict.correct), self.tokens, self.truncated, details)


class GroupAgentLoopManager:
    """Loaded by verl as `rollout.agent.agent_loop_manager_class`."""

    def __init__(self, config: Any, llm_client: GroupClient) -> None:
        self._config, self._client = config.actor_rollout_ref.rollout, llm_client
        self._settings: Mapping[str, Any] = current().settings
        self._tokenizer = hf_tokenizer(config.actor_rollout_ref.model.path)
        self._scorer = Scorer(self._settings)
        self._loop = asyncio.new_event_loop()
        self._outbox: asyncio.Queue[tuple[GroupOutcome, list[Row]]] = asyncio.Queue()
        threading.Thread(target=self._loop.run_forever, name="agent-loop", daemon=True).start()
        self._spawn(self._post())

    @classmethod
    def create(cls, config: Any, llm_client: GroupClient, **_: Any) -> "GroupAgentLoopManager":
        return cls(config, llm_client)

    def generate_sequences(self, prompts: TensorDict) -> None:
        """Start a group for each prompt and return at once (verl's contract); outcomes go to the ledger."""
        shared = {k: v.data for k, v in prompts.items() if isinstance(v, NonTensorData)}
        columns = {k: list(v) for k, v in prompts.items() if isinstance(v, NonTensorStack)}
        partition = VALIDATION if shared.get("validate") else TRAIN
        rows = [shared | {name: _plain(values[i]) for name, values in columns.items()} for i in range(len(prompts))]
        current().ledger.submit(partition, [row["uid"] for row in rows])
        for row in rows:
            self._spawn(self._run(partition, row))

    def close(self) -> None:
        """End the loop and the reward processes; groups still in flight are given up."""
        asyncio.run_coroutine_threadsafe(self._scorer.close(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _spawn(self, work: Any) -> None:
        asyncio.run_coroutine_threadsafe(work, self._loop).add_done_callback(_report_crash)

    async def _run(self, partition: str, row: Row) -> None:
        prompt = self._tokenizer.apply_chat_template(
            list(row["raw_prompt"]), add_generation_prompt=True, tokenize=True, return_dict=False
        )
        sampling, count = self._sampling(partition, row)
        responses = await self._client.generate_group(prompt, count, self._config.response_length, sampling)
        answers = await self._judge(row, responses)
        if self._wants_samples(partition, row):
            current().samples.extend((partition, answer.sample(_question(row), _truth(row))) for answer in answers)
        if partition == VALIDATION:
            current().evaluated.append(_evaluated(row, answers))
            current().ledger.finish(VALIDATION, [_outcome(row["uid"], answers, [])])
            return
        members = self._members(row, prompt, answers)
        await self._outbox.put((_outcome(row["uid"], answers, members), members))

    async def _judge(self, row: Row, responses: list[Response]) -> list[Answer]:
        texts = [self._tokenizer.decode(r.token_ids, skip_special_tokens=True) for r in responses]
        lengths = [len(r.token_ids) for r in responses]
        scored = await self._scorer.score(_question(row), texts, lengths, _truth(row))
        return [
            Answer(response, text, score, self._truncated(response))
            for response, text, score in zip(responses, texts, scored, strict=True)
        ]

    def _truncated(self, response: Response) -> bool:
        """Cut at the limit. A model may end with other tokens than the tokenizer's own, so a short one never counts."""
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

    def _members(self, row: Row, prompt: list[int], answers: list[Answer]) -> list[Row]:
        """Queue rows of the responses that count; a truncated one carries no loss when the overlong filter is on."""
        masks = self._settings["overlong"]["filter"]
        return [
            _member(row, index, prompt, answer, masked=masks and answer.truncated)
            for index, answer in enumerate(answers)
            if answer.scored.counted and answer.tokens
        ]

    async def _post(self) -> None:
        """Put finished groups into the queue, all that are waiting at a time, then tell the ledger."""
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
            current().ledger.finish(TRAIN, outcomes)


def _plain(value: Any) -> Any:
    return getattr(value, "data", value) if isinstance(value, NonTensorData) else value


def _report_crash(future: Any) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        current().ledger.fail(error)


def _question(row: Row) -> str:
    return str(row["raw_prompt"][-1]["content"])


def _truth(row: Row) -> str:
    return str(row["reward_model"]["ground_truth"])


def _evaluated(row: Row, answers: list[Answer]) -> Evaluated:
    return Evaluated(
        set_name=row["data_source"],
        verdicts=[answer.scored.verdict for answer in answers],
        lengths=[answer.tokens for answer in answers],
        truncated=[answer.truncated for answer in answers],
        index=int(row["index"]),
    )


def _outcome(uid: str, answers: list[Answer], members: list[Row]) -> GroupOutcome:
    counted = [answer for answer in answers if answer.scored.counted]
    return GroupOutcome(
        uid=uid,
        correct=sum(answer.scored.verdict.correct for answer in counted),
        rewards=tuple(answer.scored.reward for answer in counted),
        lengths=tuple(answer.tokens for answer in counted),
        truncated=sum(answer.truncated for answer in answers),
        failures=sum(answer.scored.verdict.failure is not None for answer in answers),
        keys=tuple(member["key"] for member in members),
        tags=tuple(member["tag"] for member in members),
    )


def _member(row: Row, index: int, prompt: list[int], answer: Answer, masked: bool) -> Row:
    """One response as the trainer's queue keeps it: verl's field names, its tags, its key `{uid}_{session}_{index}`."""
    response = answer.response
    prompts, responses = torch.tensor(prompt), torch.tensor(response.token_ids)
    rewards = torch.zeros(len(responses))
    rewards[-1] = answer.scored.reward
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
        "correct": answer.scored.verdict.correct,
        "truncated": answer.truncated,
        "global_steps": row["global_steps"],
        "min_global_steps": response.versions[0],
        "max_global_steps": response.versions[1],
    }
    return {"key": f"{row['uid']}_{index}_0", "fields": fields, "tag": tag}
