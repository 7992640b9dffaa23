"""The estimate as tables. Pure."""

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from dapo_core.run.formatting import duration
from dapo_trainer.plan.duration import Assumptions, Duration
from dapo_trainer.plan.estimate import Estimate
from dapo_trainer.plan.warnings import gib


def tables(estimate: Estimate, steps: int | None) -> Iterator[RenderableType]:
    yield _memory(estimate)
    if estimate.duration is not None:
        yield _time(estimate.duration, estimate.assumptions, steps)


def warned(estimate: Estimate) -> Iterator[RenderableType]:
    """What cannot fit, a line each."""
    for sentence in estimate.warnings:
        yield Text.assemble(("warning: ", "bold yellow"), sentence)


def _memory(estimate: Estimate) -> Table:
    model, gpu, engine = estimate.model, estimate.gpu, estimate.engine
    title = f"Memory of one {gpu.name}, estimated: {_billions(model.parameters)} weights"
    table = Table("cause", "training", "generating", title=title, title_justify="left")
    trainer, rollout = estimate.training, estimate.generation
    rows = [
        ("weights", trainer.weights, rollout.weights),
        ("gradients", trainer.gradients, None),
        ("optimizer", trainer.optimizer, None),
        ("weights gathered from other GPUs", trainer.gathered, None),
        (f"activations of {max(engine.tokens_per_gpu, 1):,} tokens", trainer.activations, None),
        ("logits", trainer.logits, None),
        ("KV cache", None, max(rollout.kv_cache, 0)),
        ("the trainer's, that stays", None, rollout.resident),
        ("CUDA, NCCL, buffers", trainer.runtime, rollout.runtime),
    ]
    for cause, training, generating in rows:
        table.add_row(cause, *("" if value is None else gib(value) for value in (training, generating)))
    table.add_section()
    table.add_row("in all", gib(trainer.total), gib(rollout.total), style="bold")
    table.add_row("of a GPU's", gib(gpu.memory), gib(gpu.memory))
    table.add_row("KV cache of an engine", "", f"{rollout.tokens:,} tokens")
    return table


def _time(times: Duration, assumed: Assumptions, steps: int | None) -> Table:
    table = Table("phase", "time", "assumed", title="One step's time, estimated", title_justify="left")
    rate = f"{times.decode_rate:,.0f} tokens a second and GPU"
    how = (
        "given"
        if assumed.decode_rate
        else (f"{assumed.bandwidth_share:.0%} of memory bandwidth, {assumed.step_overhead * 1000:g} ms a token on top")
    )
    made, trained = times.tokens_generated / 1e6, times.tokens_trained / 1e6
    table.add_row("generate", duration(times.generate), f"{made:.3g} million tokens, {rate} ({how})")
    table.add_row("the longest response", duration(times.tail), "the rest of it alone on its engine")
    table.add_row(
        "log-probs", duration(times.log_probs), f"{trained:.3g} million tokens, {assumed.mfu_forward:.0%} MFU"
    )
    table.add_row("update", duration(times.update), f"{trained:.3g} million tokens, {assumed.mfu:.0%} MFU")
    table.add_row("weights to the engines", duration(times.sync), f"{assumed.sync_seconds_per_gb:g} s a GB")
    table.add_section()
    how = "generation and training at once" if times.overlap else "one after the other"
    table.add_row("a step", duration(times.step), how, style="bold")
    if steps:
        table.add_row(f"{steps:,} steps", duration(times.step * steps), "without validation, start-up and restarts")
    length = f"responses of {assumed.response_share:.0%} of the limit; {assumed.kept_share:.0%} of groups kept"
    table.caption = f"{length} where dynamic sampling is on. Each is an option: dapo plan --help."
    table.caption_justify = "left"
    return table


def _billions(count: int) -> str:
    return f"{count / 1e9:.3g} billion" if count >= 1e8 else f"{count:,}"
