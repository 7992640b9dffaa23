"""Our verdict next to the published rule's and a person's, over the table of tests/support/answers.jsonl."""

import asyncio
import random
from collections import defaultdict

import pytest
from answers import ANSWERS, JudgedAnswer

from dapo_core.jobspec import Reward
from dapo_trainer.rewards.rule_rewards import as_integer, math
from dapo_trainer.rewards.scorer import Scorer
from dapo_trainer.rewards.verdict import ResponseGroup
from dapo_trainer.verl_config.overrides import reward_settings

SETTINGS = {
    "reward": reward_settings(Reward.model_validate({"timeoutSeconds": 60.0})),
    "overlong": {"filter": True, "penalty": None},
}
# Right to a person, but not in the form that was asked for, or with two signs.
DECLINED = {"The answer is 42", "42", "Answer: -\\frac{-84}{2}"}


@pytest.fixture(scope="module")
def judged() -> dict[JudgedAnswer, bool]:
    by_label: dict[str, list[JudgedAnswer]] = defaultdict(list)
    for row in ANSWERS:
        by_label[row.label].append(row)

    async def run() -> dict[JudgedAnswer, bool]:
        scorer = Scorer(SETTINGS)
        try:
            groups = await asyncio.gather(
                *(
                    scorer.score(ResponseGroup("?", [r.response for r in rows], label), [1] * len(rows))
                    for label, rows in by_label.items()
                )
            )
        finally:
            await scorer.close()
        scored = [one.verdict for group in groups for one in group]
        assert not [verdict.failure for verdict in scored if verdict.failure is not None]
        rows = [row for rows in by_label.values() for row in rows]
        return {row: verdict.correct for row, verdict in zip(rows, scored, strict=True)}

    return asyncio.run(run())


def test_b14_the_recorded_verdicts_are_ours(judged: dict[JudgedAnswer, bool]) -> None:
    assert [(row, ours) for row, ours in judged.items() if ours is not row.ours] == []


def test_b14_what_is_wrong_is_never_accepted() -> None:
    assert [row for row in ANSWERS if row.ours and row.person == "wrong"] == []


def test_b14_what_is_right_is_accepted() -> None:
    assert {row.response for row in ANSWERS if row.person == "right" and not row.ours} == DECLINED


def test_b14_what_the_published_rule_accepts_rightly_is_accepted() -> None:
    assert [row for row in ANSWERS if row.published and row.person == "right" and not row.ours] == []


def test_the_table_has_answers_of_every_kind() -> None:
    kinds = {(row.person, row.published) for row in ANSWERS}
    assert len(ANSWERS) == len({(row.response, row.label) for row in ANSWERS}) >= 300 and len(kinds) == 4


OUTSIDE = (
    "{}",
    "${}$",
    "\\boxed{{{}}}",
    "**{}**",
    "\\text{{{}}}",
    "\\({}\\)",
    "({})",
    "$\\mathbf{{{}}}$",
    "x = {}",
    "{}.",
)
BESIDE = (
    " cm",
    "\\text{ cm}^2",
    "^\\circ",
    " dollars",
    " square units",
    "\\mathrm{th}",
    " \\text{ degrees}",
    "",
    " points",
)


def test_any_number_in_any_two_dresses_and_a_unit_is_read() -> None:
    drawn = random.Random(14)
    for _ in range(2000):
        value = drawn.randint(-9999, 9999)
        outer, inner, unit = drawn.choice(OUTSIDE), drawn.choice(OUTSIDE[:-4]), drawn.choice(BESIDE)
        text = outer.format(inner.format(value) + unit)
        assert as_integer(text) == value, text


def test_two_numbers_are_never_one() -> None:
    """Whatever stands between two digits joins them to no number, except separators of thousands."""
    drawn = random.Random(14)
    pieces = [
        "$",
        "*",
        " ",
        "\\ ",
        "\\,",
        "{",
        "}",
        "\\text{",
        "cm",
        "^",
        "=",
        "(",
        ")",
        "\\boxed{",
        ",",
        "or",
        "_",
        "/",
    ]
    for _ in range(20_000):
        left, right = drawn.randint(1, 9), drawn.randint(1, 99)
        between = "".join(drawn.choices(pieces, k=drawn.randint(1, 4)))
        text = f"{left}{between}{right}"
        assert as_integer(text) != int(f"{left}{right}"), text


def test_no_response_raises() -> None:
    drawn = random.Random(14)
    pieces = [
        "Answer:",
        "\\boxed{",
        "}",
        "{",
        "=",
        "$",
        "\\frac",
        "\\text{",
        "42",
        "^",
        "\\circ",
        " ",
        "\n",
        ",",
        "-",
        "/",
        "0",
    ]
    pieces += [
        "\N{MINUS SIGN}",
        "\N{SUPERSCRIPT TWO}",
        "\N{ARABIC-INDIC DIGIT FOUR}",
        "\x1f",
        "\x00",
        "cm",
        "(",
        ")",
        "\\",
        ".",
    ]
    for _ in range(20_000):
        math("".join(drawn.choices(pieces, k=drawn.randint(0, 40))), "42")
