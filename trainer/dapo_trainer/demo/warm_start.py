"""A small Qwen2 policy, built and trained here: about one in five of its responses to the demo's prompts is correct."""

from pathlib import Path
from random import Random

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from dapo_trainer.demo.task import Habits, demonstration, problems, question

IGNORED = -100  # torch's label that carries no loss
BATCH = 96
RAMP_STEPS = 20  # of the learning rates, at the start


def tokenizer() -> Qwen2Tokenizer:
    """Byte-level BPE without merges, of the class that transformers builds for every qwen2 tokenizer."""
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    vocabulary = {token: i for i, token in enumerate([*bytes_to_unicode().values(), *specials])}
    result = Qwen2Tokenizer(
        vocab=vocabulary,
        merges=[],
        unk_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=512,
    )
    # The newline is an expression because transformers trims a newline after a block tag.
    result.chat_template = (
        "{% for m in messages %}<|im_start|>{{ m['content'] }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '\\n' }}{% endif %}"
    )
    return result


def model(vocabulary: Qwen2Tokenizer) -> Qwen2ForCausalLM:
    """A Qwen2 of three layers with random weights, in float32."""
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=len(vocabulary),  # more would shift the trainer's log-probs against vLLM's, which masks the rest
            hidden_size=128,
            intermediate_size=384,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=128,
            tie_word_embeddings=False,
            bos_token_id=None,
            eos_token_id=vocabulary.eos_token_id,
            pad_token_id=vocabulary.pad_token_id,
        )
    ).float()


def _batch(size: int, text: Qwen2Tokenizer, habits: Habits, random: Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, [size, longest]: the prompt carries no loss."""
    pairs = []
    for (a, b), _ in zip(problems(random), range(size), strict=False):
        prompt = text.encode(f"<|im_start|>{question(a, b)}\n")
        pairs.append((prompt, text.encode(demonstration(a, b, habits, random) + "<|im_end|>")))
    longest = max(len(prompt) + len(answer) for prompt, answer in pairs)
    ids = torch.full((size, longest), text.pad_token_id)
    labels = torch.full((size, longest), IGNORED)
    for row, (prompt, answer) in enumerate(pairs):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return ids, labels


def _optimizers(policy: Qwen2ForCausalLM) -> list[torch.optim.Optimizer]:
    """Muon (Jordan et al. 2024) for the layers' matrices, which needs half of AdamW's batches here; AdamW for the
    embeddings, the head and the norms, which Muon is not for."""
    matrices = [weight for weight in policy.model.layers.parameters() if weight.ndim == 2]
    chosen = set(matrices)
    rest = [weight for weight in policy.parameters() if weight not in chosen]
    return [
        torch.optim.Muon(matrices, lr=0.02, weight_decay=0.0, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=3e-3),
    ]


def warm_start(folder: Path, seed: int, steps: int, habits: Habits | None = None) -> Qwen2ForCausalLM:
    """Train for `steps` batches of demonstrations and save model and tokenizer to `folder`."""
    torch.manual_seed(seed)
    random, text = Random(seed), tokenizer()
    policy = model(text)
    optimizers = _optimizers(policy)
    # Linear decay: the slips are noise, which small last steps average out.
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(
            optimizer, lambda step: min(1.0, step / RAMP_STEPS) * max(0.03, 1 - step / steps)
        )
        for optimizer in optimizers
    ]
    for _ in range(steps):
        ids, labels = _batch(BATCH, text, habits or Habits(), random)
        loss = policy(ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
    policy.save_pretrained(folder)
    text.save_pretrained(folder)
    return policy
