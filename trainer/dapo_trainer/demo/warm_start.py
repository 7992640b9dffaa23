"""A small Qwen2 policy, built and trained here: about one in five of its responses to the demo's prompts is correct.

Training takes two minutes of a processor, so that of seed 0 comes with the package. It is made by

    python -m dapo_trainer.demo.warm_start
"""

from pathlib import Path
from random import Random

import torch
from safetensors.torch import load_file, save_file
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2Tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from dapo_trainer.demo.task import Habits, demonstration, problems, question

IGNORED = -100  # torch's label that carries no loss
STEPS, BATCH = 450, 96  # batches of demonstrations, and demonstrations in each
SHIPPED_SEED = 0
SHIPPED = Path(__file__).with_name("warm_started.safetensors")  # in bfloat16, which halves the file


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


def _batch(size: int, text: Qwen2Tokenizer, random: Random) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids and labels, [size, longest]: the prompt carries no loss."""
    pairs = []
    for (a, b), _ in zip(problems(random), range(size), strict=False):
        prompt = text.encode(f"<|im_start|>{question(a, b)}\n")
        pairs.append((prompt, text.encode(demonstration(a, b, Habits(), random) + "<|im_end|>")))
    longest = max(len(prompt) + len(answer) for prompt, answer in pairs)
    ids = torch.full((size, longest), text.pad_token_id)
    labels = torch.full((size, longest), IGNORED)
    for row, (prompt, answer) in enumerate(pairs):
        end = len(prompt) + len(answer)
        ids[row, :end] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : end] = torch.tensor(answer)
    return ids, labels


def warm_started(seed: int) -> Qwen2ForCausalLM:
    """The policy that the demo of this seed begins with: the one of the package, or trained now."""
    if seed != SHIPPED_SEED:
        return train(seed)
    policy = model(tokenizer())
    policy.load_state_dict(load_file(SHIPPED))
    return policy


def train(seed: int) -> Qwen2ForCausalLM:
    """A policy trained on `STEPS` batches of demonstrations."""
    torch.manual_seed(seed)
    random, text = Random(seed), tokenizer()
    policy = model(text)
    # Muon needs half as many batches, but its larger weights learn at half the speed at the demo's learning rate.
    optimizer = torch.optim.AdamW(policy.parameters(), 3e-3)
    for step in range(STEPS):
        # Linear decay: the slips are noise, which small last steps average out.
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, step / 20) * max(0.03, 1 - step / STEPS)
        ids, labels = _batch(BATCH, text, random)
        loss = policy(ids, labels=labels).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return policy


if __name__ == "__main__":
    save_file({name: weights.bfloat16() for name, weights in train(SHIPPED_SEED).state_dict().items()}, SHIPPED)
