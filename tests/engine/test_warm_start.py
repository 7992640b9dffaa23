"""The policy that the demo begins with: the one of the package, and those that are trained."""

from itertools import islice
from random import Random

import pytest
import torch
from transformers import Qwen2ForCausalLM

from dapo_trainer.demo import warm_start
from dapo_trainer.demo.task import problems, question
from dapo_trainer.rewards.rule_rewards import math


def accuracy(policy: Qwen2ForCausalLM) -> float:
    """Share of right ones among four responses to each of 64 prompts, sampled at temperature 1."""
    text, pairs = warm_start.tokenizer(), list(islice(problems(Random(20250318)), 64))
    text.padding_side = "left"
    prompts = text([f"<|im_start|>{question(a, b)}\n" for a, b in pairs], return_tensors="pt", padding=True)
    torch.manual_seed(0)
    answers = policy.generate(
        **prompts, do_sample=True, top_k=0, max_new_tokens=40, num_return_sequences=4, pad_token_id=text.pad_token_id
    )
    texts = text.batch_decode(answers[:, prompts["input_ids"].shape[1] :], skip_special_tokens=True)
    sums = [str(a + b) for a, b in pairs for _ in range(4)]
    return sum(math(answer, total).correct for answer, total in zip(texts, sums, strict=True)) / len(sums)


def test_one_in_five_responses_of_the_policy_of_the_package_is_right() -> None:
    assert accuracy(warm_start.warm_started(0)) == pytest.approx(0.2, abs=0.08)


def test_the_policy_of_another_seed_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warm_start, "STEPS", 24)
    monkeypatch.setattr(warm_start, "BATCH", 8)
    text = warm_start.tokenizer()
    ids, labels = warm_start._batch(32, text, Random(5))
    policies = warm_start.warm_started(1), warm_start.model(text)
    with torch.no_grad():
        trained, random = (policy(ids, labels=labels).loss for policy in policies)
    assert trained < 0.7 * random
