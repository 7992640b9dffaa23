"""Whatever is thrown at the parser: it returns a job or raises sentences, and a job survives being written out."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import MINIMAL, VALIDATION
from hypothesis import given, settings
from hypothesis import strategies as st

from dapo_core.errors import SpecError
from dapo_core.jobspec import DAPOJobSpec, field_sources, load_job, parse_job
from dapo_core.jobspec.presets import merged
from dapo_core.jobspec.problems import field_names

SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20), st.sampled_from(["hf://a/b", "dapo"])
)
KEYS = st.one_of(st.text(max_size=10), st.integers(), st.none())
TREES: st.SearchStrategy[Any] = st.recursive(
    SCALARS,
    lambda below: st.one_of(st.lists(below, max_size=4), st.dictionaries(KEYS, below, max_size=4)),
    max_leaves=12,
)


def with_known_names(values: st.SearchStrategy[Any], *location: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(field_names(DAPOJobSpec, location)), values, max_size=6)


GROUPS = st.fixed_dictionaries(
    {},
    optional={
        name: st.one_of(TREES, with_known_names(TREES, name)) if field_names(DAPOJobSpec, (name,)) else TREES
        for name in field_names(DAPOJobSpec, ())
    },
)


def accepted_or_refused(data: Any) -> None:
    try:
        parse_job(data)
    except SpecError as error:
        assert all(problem.message for problem in error.problems) and error.problems


@given(TREES)
def test_any_tree_is_accepted_or_refused(tree: Any) -> None:
    accepted_or_refused(tree)


@settings(max_examples=100)
@given(GROUPS)
def test_any_groups_are_accepted_or_refused(groups: dict[str, Any]) -> None:
    accepted_or_refused(merged(MINIMAL, {"spec": groups}))


@given(st.binary(max_size=200))
def test_any_file_is_accepted_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path: Path = tmp_path_factory.getbasetemp() / "any.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError):
        load_job(path)


PRESETS = st.sampled_from(["dapo", "grpo"])
BATCHES = st.fixed_dictionaries(
    {},
    optional={
        "prompts": st.integers(1, 4096),
        "responsesPerPrompt": st.integers(2, 64),
        "maxResponseTokens": st.integers(1, 100_000),
        "temperature": st.floats(0.01, 2),
        "topP": st.floats(0.01, 1),
    },
)
ALGORITHMS = st.fixed_dictionaries(
    {"preset": PRESETS},
    optional={
        "clipLow": st.floats(0, 0.19),
        "clipHigh": st.floats(0.2, 1),
        "lossAggregation": st.sampled_from(["TokenMean", "SequenceMean"]),
        "dynamicSampling": st.fixed_dictionaries({}, optional={"enabled": st.booleans()}),
        "overlong": st.fixed_dictionaries(
            {},
            optional={
                "filter": st.booleans(),
                "penalty": st.one_of(
                    st.none(), st.fixed_dictionaries({}, optional={"enabled": st.booleans(), "factor": st.floats(0, 9)})
                ),
            },
        ),
        "oldLogProbs": st.sampled_from([None, "Trainer", "Rollout"]),
        "importanceCorrection": st.one_of(st.none(), st.just({})),
        "rolloutRejection": st.one_of(st.none(), st.just({}), st.just({"level": "SequenceMax", "measure": "K3"})),
    },
)
OTHER_LOSSES = st.fixed_dictionaries(
    {"preset": PRESETS, "loss": st.sampled_from(["gspo", "cispo", "sapo", "drgrpo"])},
    optional={"klCoefficient": st.floats(0, 1)},
)


def of_all_tokens(spec: dict[str, Any]) -> dict[str, Any]:
    """Without a topP below 1 where probabilities of trainer and rollout are compared, or a comparison with nothing:
    both are refused."""
    algorithm, batch = spec["algorithm"], spec.get("batch", {})
    used = {"oldLogProbs", "importanceCorrection", "rolloutRejection"} & {
        name for name, value in algorithm.items() if value not in (None, "Trainer")
    }
    if not used:
        return spec
    if len(used) > 1:
        algorithm = {name: value for name, value in algorithm.items() if name != "oldLogProbs"}
    return {**spec, "algorithm": algorithm, "batch": {key: value for key, value in batch.items() if key != "topP"}}


SPECS = st.fixed_dictionaries(
    {"algorithm": st.one_of(ALGORITHMS, OTHER_LOSSES)},
    optional={
        "batch": BATCHES,
        "suspend": st.booleans(),
        "managedBy": st.one_of(st.none(), st.just("kueue.x-k8s.io/multikueue")),
        "schedule": st.one_of(st.just({"epochs": 2}), st.just({"steps": 3}), st.just({})),
        "guards": st.one_of(st.just([]), st.just([{"rule": "NonFinite"}])),
        "checkpoints": st.fixed_dictionaries({}, optional={"keepBest": st.integers(0, 3)}),
        "topology": st.fixed_dictionaries(
            {}, optional={"head": st.fixed_dictionaries({}, optional={"resources": st.just({"cpu": 4})})}
        ),
        "verlOverrides": st.dictionaries(st.text(max_size=5), st.integers(), max_size=2),
    },
).map(of_all_tokens)


@settings(max_examples=100)
@given(SPECS)
def test_valid_jobs_round_trip(spec: dict[str, Any]) -> None:
    data = merged(MINIMAL, {"spec": {"data": {"validation": VALIDATION}, **spec}})
    job = parse_job(data)
    dumped = job.model_dump(by_alias=True, mode="json", exclude_none=True)
    assert parse_job(dumped) == job
    assert parse_job(json.loads(json.dumps(dumped))) == job
    assert parse_job(yaml.safe_load(yaml.safe_dump(dumped))) == job
    assert parse_job(dumped).spec.digest() == job.spec.digest()


@given(SPECS)
def test_filled_numbers_keep_the_rules(spec: dict[str, Any]) -> None:
    data = merged(MINIMAL, {"spec": {"data": {"validation": VALIDATION}, **spec}})
    filled = parse_job(data).spec
    batch, penalty = filled.batch, filled.algorithm.overlong.penalty
    assert batch.responses % batch.mini_batch_responses == 0
    assert batch.updates_per_step <= 16
    assert penalty is None or penalty.expected_tokens + penalty.cache_tokens == batch.max_response_tokens
    sources = {f"preset {spec['algorithm']['preset']}", f"loss {spec['algorithm'].get('loss', 'dapo')}"}
    assert set(field_sources(data).values()) <= {"file", "default", *sources}
