"""A wrong job file: one sentence for each mistake, with field, value and remedy, and all mistakes at once.

Rules between fields are in test_bad_fields_together.
"""

from pathlib import Path
from typing import Any

import pytest
import yaml
from builders import MINIMAL
from spec_problems import READABLE, case, messages, problems

from dapo_core.errors import SpecError
from dapo_core.jobspec import load_job, parse_job
from dapo_core.jobspec.presets import merged


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        case("unknown group", "optimzer is not a field of spec: did you mean optimizer?", optimzer={}),
        case("snake case", "batch.top_p is not a field of spec.batch: did you mean topP?", batch={"top_p": 1}),
        case(
            "unknown and nothing near",
            "reward.xyz is not a field of spec.reward: the fields here are type, answerRule, module, file, perGroup, "
            "name, weight, additional, workers, timeoutSeconds, onTimeout.",
            reward={"xyz": 1},
        ),
        case(
            "unknown in a list",
            "data.train[0].src is not a field of spec.data.train[0]: did you mean source?",
            data={"train": [{"source": "s3://b/k", "src": 1}]},
        ),
        case(
            "text for a number", 'batch.prompts is "many" (a string) but must be an integer.', batch={"prompts": "many"}
        ),
        case(
            "quoted number",
            'batch.prompts is "32" (a string) but must be an integer: write it without quotes.',
            batch={"prompts": "32"},
        ),
        case(
            "no run ID",
            'runId is "first": write a run ID as the platform makes them, such as first-20260131-0412-x7k2.',
            runId="first",
        ),
        case("fraction", "batch.prompts is 1.5 (a number) but must be an integer.", batch={"prompts": 1.5}),
        case("null", "batch.prompts is null but must be an integer.", batch={"prompts": None}),
        case("truth for a number", "batch.topP is true (a boolean) but must be a number.", batch={"topP": True}),
        case(
            "number for text",
            "model.revision is 12 (an integer) but must be a string: put it in quotes.",
            model={"revision": 12},
        ),
        case("number for truth", "suspend is 1 (an integer) but must be true or false.", suspend=1),
        case("no mapping", "stores is [] (a list) but must be a mapping of fields.", stores=[]),
        case("no list", 'data.train is "x" (a string) but must be a list.', data={"train": "x"}),
        case("empty list", "data.train is []: it must not be empty.", data={"train": []}),
        case(
            "path where a mapping belongs",
            'data.train[0] is "a/b" (a string) but must be a mapping of fields, such as `source: a/b`.',
            data={"train": ["a/b"]},
        ),
        case(
            "infinite", "batch.temperature is inf (a number) but must be a finite number.", batch={"temperature": 1e999}
        ),
        case("too low", "batch.temperature is 0 but must be more than 0.0.", batch={"temperature": 0}),
        case("too high", "batch.topP is 2 but must be at most 1.0.", batch={"topP": 2}),
        case(
            "not a choice",
            'topology.mode is "colocated" but must be one of Separated, Colocated: did you mean Colocated?',
            topology={"mode": "colocated"},
        ),
        case(
            "plain path",
            'model.source is "models/a": plain paths work only with `dapo run` and `dapo plan`; ' + READABLE,
            model={"source": "models/a"},
        ),
        case(
            "unknown scheme",
            f'model.source is "gs://b/k": the scheme gs: is not supported; {READABLE}',
            model={"source": "gs://b/k"},
        ),
        case(
            "checkpoints on the hub",
            'checkpoints.uri is "hf://a/b": checkpoints cannot be written to a model hub; use s3://, file:/// or pvc://.',
            checkpoints={"uri": "hf://a/b"},
        ),
        case(
            "quantity",
            'topology.head.resources.memory is "lots": use a Kubernetes quantity such as 4, "500m" or "16Gi".',
            topology={"head": {"resources": {"memory": "lots"}}},
        ),
        case(
            "form of the best metric",
            'checkpoints.bestMetric is "acc": write it as val-core/{validation name}/acc/mean@{k}.',
            checkpoints={"bestMetric": "acc"},
        ),
        case("no worker", "reward.workers is 0 but must be at least 1.", reward={"workers": 0}),
        case(
            "filter",
            'algorithm.dynamicSampling.filterBy is "length" but must be one of accuracy, spread.',
            algorithm={"dynamicSampling": {"filterBy": "length"}},
        ),
        case(
            "no weight",
            "data.train[0].weight is 0 but must be at least 0.001.",
            data={"train": [{"source": "s3://b/a", "weight": 0}]},
        ),
        case("module form", 'reward.module is "a.b": write it as package.module:function.', reward={"module": "a.b"}),
    ],
)
def test_one_sentence_each(spec: dict[str, Any], sentence: str) -> None:
    assert messages(spec) == [sentence]


@pytest.mark.parametrize(
    ("top", "sentence"),
    [
        pytest.param({"kind": "Job"}, 'kind is "Job" but must be DAPOJob.', id="kind"),
        pytest.param({"sepc": {}}, "sepc is not a field of a DAPOJob: did you mean spec?", id="unknown top field"),
        pytest.param(
            {"metadata": {"name": "Foo"}},
            'metadata.name is "Foo": use lower-case letters, digits and dashes, starting with a letter.',
            id="capitals in the name",
        ),
        pytest.param(
            {"metadata": {"name": "a" * 45}},
            f'metadata.name is "{"a" * 45}": keep it to at most 44 characters.',
            id="name of 45 characters",
        ),
    ],
)
def test_outside_the_spec(top: dict[str, Any], sentence: str) -> None:
    assert messages({}, **top) == [sentence]


def test_an_empty_spec_is_a_sentence() -> None:
    assert [problem.message for problem in problems({**MINIMAL, "spec": None})] == [
        "spec is null but must be a mapping of fields."
    ]


def test_all_problems_at_once() -> None:
    found = messages(
        {"batch": {"prompts": "x"}, "algorithm": {"clipLow": 0.9}, "reward": {"type": "custom"}, "stors": {}},
        kind="Job",
    )
    assert [sentence.split(" ")[0] for sentence in found] == [
        "kind",
        "spec.batch.prompts",
        "spec.stors",
        "spec.reward.module",
        "spec.algorithm.clipLow",
    ]


def test_a_missing_field_is_named_with_its_meaning() -> None:
    assert [problem.message.split(":")[0] for problem in problems({})] == [
        "apiVersion is missing",
        "kind is missing",
        "metadata is missing",
        "spec is missing",
    ]
    assert problems(merged(MINIMAL, {"spec": {"data": {"train": [{}]}}}))[0].field == "spec.data.train[0].source"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        pytest.param(b"a: [1\nb: 2", "is not valid YAML at line 2, column 2: expected ',' or ']'", id="broken"),
        pytest.param(b"a: 1\na: 2", "at line 2, column 1: duplicate key a.", id="key twice"),
        pytest.param(b"- 1", "is not a DAPOJob", id="a list"),
        pytest.param(b"", "is not a DAPOJob", id="empty"),
        pytest.param(b"\xff\xfe", "is not UTF-8 text", id="not UTF-8"),
        pytest.param(b"a: \x07", "cannot be read", id="control characters"),
        pytest.param(b"a: 1\n---\nb: 2", "is not valid YAML", id="two documents"),
        pytest.param(b"[" * 5000, "nested too deeply", id="nested too deeply"),
        pytest.param(b"? [a]\n: 1", "is not valid YAML", id="a list as key"),
    ],
)
def test_unreadable_files(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError, match=r"job\.yaml") as caught:
        load_job(path)
    assert sentence in str(caught.value)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none.yaml cannot be read: No such file or directory\."):
        load_job(tmp_path / "none.yaml")


def test_dates_and_keys_that_are_not_strings(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(MINIMAL) + "  1: x\n  suspend: 2024-01-01\n")
    with pytest.raises(SpecError) as caught:
        load_job(path)
    assert 'spec.suspend is "2024-01-01" (a string) but must be true or false.' in str(caught.value)
    assert "spec[1] is a key that is not a string: put it in quotes or remove it." in str(caught.value)


def test_parse_raises_with_all_sentences() -> None:
    with pytest.raises(SpecError, match=r"(?s)spec\.batch\.topP.*spec\.reward\.module"):
        parse_job(merged(MINIMAL, {"spec": {"batch": {"topP": 3}, "reward": {"type": "custom"}}}))
