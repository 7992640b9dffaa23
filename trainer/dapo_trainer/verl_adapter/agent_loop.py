"""Prompts in, scored groups out: verl's agent loop, one task a group instead of one actor call a response.

It runs on an event loop in a thread of the driver. The work it does itself is small (tokenise a prompt, decode and
score its responses); generation is vLLM's, and a group's tensors go to TransferQueue in one put with its neighbours'.
"""

import asyncio
import threading
from collections.abc import Mapping
from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from tensordict.tensorclass import NonTensorData, NonTensorStack
from verl.utils import hf_tokenizer
from verl.utils.tensordict_utils import list_of_dict_to_tensordict

from dapo_trainer.evaluation import Evaluated
from dapo_trainer.rewards.scorer import Scored, Scorer
from dapo_trainer.samples import Sample
from dapo_trainer.sampling import GroupOutcome
from dapo_trainer.verl_adapter.group_buffer import TRAIN, stored
from dapo_trainer.verl_adapter.group_server import GroupClient, Response
from dapo_trainer.verl_adapter.session import current

VALIDATION = "val"
Row = dict[str, Any]


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
        budget = self._config.response_length
        responses = await self._client.generate_group(prompt, count, budget, sampling)
        texts = [self._tokenizer.decode(r.token_ids, skip_special_tokens=True) for r in responses]
        truth = str(row["reward_model"]["ground_truth"])
        question = row["raw_prompt"][-1]["content"]
        scored = await self._scorer.score(question, texts, [len(r.token_ids) for r in responses], truth)
        truncated = [not self._ended(r) for r in responses]
        if self._wants_samples(partition, row):
            rows = _samples(question, texts, truth, responses, scored, truncated)
            current().samples += [(partition, sample) for sample in rows]
        if partition == VALIDATION:
            lengths = [len(r.token_ids) for r in responses]
            current().evaluated.append(Evaluated(row["data_source"], [s.verdict for s in scored], lengths))
            current().ledger.finish(VALIDATION, [self._outcome(row["uid"], responses, scored, truncated, [])])
            return
        members = self._members(row, prompt, responses, scored, truncated)
        await self._outbox.put((self._outcome(row["uid"], responses, scored, truncated, members), members))

    def _sampling(self, partition: str, row: Row) -> tuple[dict[str, Any], int]:
        rollout = self._config
        if partition == VALIDATION:
            chosen = self._settings["validation"][row["data_source"]]
            return {"temperature": chosen["temperature"], "top_p": chosen["top_p"]}, chosen["n"]
        return {"temperature": rollout.temperature, "top_p": rollout.top_p, "top_k": -1, "logprobs": True}, rollout.n

    def _wants_samples(self, partition: str, row: Row) -> bool:
        every = self._settings["log_samples_every"]
        return bool(every) and (partition == VALIDATION or row["global_steps"] % every == 0)

    def _ended(self, response: Response) -> bool:
        return bool(response.token_ids) and response.token_ids[-1] == self._tokenizer.eos_token_id

    @staticmethod
    def _outcome(
        uid: str, responses: list[Response], scored: list[Scored], truncated: list[bool], members: list[Row]
    ) -> GroupOutcome:
        counted = [(r, s) for r, s in zip(responses, scored, strict=True) if s.counted]
        return GroupOutcome(
            uid=uid,
            correct=sum(s.verdict.correct for _, s in counted),
            rewards=tuple(s.reward for _, s in counted),
            lengths=tuple(len(r.token_ids) for r, _ in counted),
            truncated=sum(truncated),
            failures=sum(s.verdict.failure is not None for s in scored),
            keys=tuple(member["key"] for member in members),
            tags=tuple(member["tag"] for member in members),
        )

    def _members(
        self, row: Row, prompt: list[int], responses: list[Response], scored: list[Scored], truncated: list[bool]
    ) -> list[Row]:
        """Queue rows of the responses that count; a truncated one carries no loss when the overlong filter is on."""
        masks = self._settings["overlong"]["filter"]
        return [
            _member(row, index, prompt, response, score, cut, masked=masks and cut)
            for index, (response, score, cut) in enumerate(zip(responses, scored, truncated, strict=True))
            if score.counted and response.token_ids
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


def _member(
    row: Row, index: int, prompt: list[int], response: Response, score: Scored, truncated: bool, masked: bool
) -> Row:
    """One response as the trainer's queue keeps it: verl's field names, its tags, its key `{uid}_{session}_{index}`."""
    prompts, responses = torch.tensor(prompt), torch.tensor(response.token_ids)
    rewards = torch.zeros(len(responses))
    rewards[-1] = score.reward
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
        "correct": score.verdict.correct,
        "truncated": truncated,
        "global_steps": row["global_steps"],
        "min_global_steps": response.versions[0],
        "max_global_steps": response.versions[1],
    }
    return {"key": f"{row['uid']}_{index}_0", "fields": fields, "tag": tag}


def _samples(
    question: str,
    texts: list[str],
    truth: str,
    responses: list[Response],
    scored: list[Scored],
    truncated: list[bool],
) -> list[Sample]:
    return [
        Sample(question, text, truth, s.reward, float(s.verdict.correct), len(response.token_ids), cut)
        for text, response, s, cut in zip(texts, responses, scored, truncated, strict=True)
    ]
