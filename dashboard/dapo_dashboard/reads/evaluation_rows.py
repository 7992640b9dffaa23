"""What `dapo evaluate` found, as tables: shares in percent with their 95% intervals over prompts. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from dapo_core.db.evaluations import EvaluationRow
from dapo_core.run.formatting import moment, percent
from dapo_dashboard.plain import shown

Results = Mapping[str, Any]


def columns(rows: Sequence[EvaluationRow]) -> dict[str, list[Any]]:
    """A row for each set of each evaluation, as they come."""
    found = [row.results for row in rows]
    return {
        "Step": [row.step for row in rows],
        "Set": [shown(row.set_name, 80) for row in rows],
        "When": [moment(row.created_at) for row in rows],
        **figures(found),
        "Sampled": [sampling(row) for row in rows],
    }


def by_subset(results: Results) -> dict[str, list[Any]]:
    """A row for each subset."""
    subsets: Mapping[str, Results] = results.get("subsets") or {}
    return {"Subset": [shown(name, 80) for name in subsets], **figures(list(subsets.values()))}


def figures(found: Sequence[Results]) -> dict[str, list[Any]]:
    """The same columns for a set and for a part of one; k stands in a column of its own where it is not the same."""
    ks = [str(one["samples"]) for one in found]
    k = ks[0] if len(set(ks)) == 1 else "k"
    return {
        "Prompts": [one["prompts"] for one in found],
        **({} if k != "k" else {"k": ks}),
        f"mean@{k}": [100 * one["mean"]["value"] for one in found],
        "95% interval": [interval(one["mean"]) for one in found],
        f"pass@{k}": [100 * one["pass_at"][str(one["samples"])]["value"] for one in found],
        f"maj@{k}": [100 * one["majority"]["value"] for one in found],
        "Tokens": [one["lengths"]["mean"] for one in found],
        "Cut off": [100 * one["truncated"] for one in found],
        "No answer": [100 * one["unstated"] for one in found],
    }


def sampling(row: EvaluationRow) -> str:
    """`temperature 1, top-p 0.7, at most 20,480 tokens`."""
    given = row.sampling
    told = [f"temperature {given['temperature']:g}"] if "temperature" in given else []
    told += [f"top-p {given['topP']:g}"] if "topP" in given else []
    told += [f"at most {given['maxResponseTokens']:,} tokens"] if "maxResponseTokens" in given else []
    return ", ".join(told)


def interval(estimate: Mapping[str, float | None]) -> str:
    """`37.5% to 62.5%`; empty where one prompt gives none."""
    low, high = estimate.get("low"), estimate.get("high")
    return "" if low is None or high is None else f"{percent(low)} to {percent(high)}"


def spoken(estimates: Mapping[str, Mapping[str, float | None]]) -> str:
    """What a screen reader says of estimates."""
    return "; ".join(f"{name} {percent(one['value'])} ({interval(one)})" for name, one in estimates.items())
