"""Which metrics a comparison draws: searched by a pattern that anybody may put into a link, and pinned."""

import pytest

from dapo_dashboard.reads.metric_search import (
    MAX_CHARACTERS,
    MAX_CHARTS,
    MAX_PATTERN,
    Choice,
    PatternError,
    chosen,
    matching,
)

NAMES = ["actor/entropy", "actor/grad_norm", "val-core/aime/acc/mean@4", "response_length/mean"]


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        pytest.param("^actor/", NAMES[:2], id="from the start"),
        pytest.param("ENTROPY|mean$", [NAMES[0], NAMES[3]], id="either, in any case"),
        pytest.param(r"mean@\d", [NAMES[2]], id="a digit"),
        pytest.param("x", [], id="none"),
    ],
)
def test_names_in_which_a_pattern_is_found(pattern: str, found: list[str]) -> None:
    assert matching(NAMES, pattern) == found
    assert matching([], pattern) == []


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        pytest.param("(", r"'\(' is not a valid regular expression: missing \)", id="open bracket"),
        pytest.param("(?=a)", "look-around and backreferences are not supported", id="look-around"),
        pytest.param(r"(a)\1", "look-around and backreferences are not supported", id="backreference"),
        pytest.param("((a{100}){100}){100}", "repetition count", id="a million states"),
        pytest.param("(a?){1000}b", "repetition count", id="a minute for the names of one run"),
        pytest.param(r"[\PL]?" * 30, "class of Unicode", id="hundreds of states in one sign"),
        pytest.param("a" * (MAX_PATTERN + 1), f"shorten it to {MAX_PATTERN}", id="long"),
        pytest.param("\udc80", "cannot be printed", id="half a character"),
        pytest.param("a\0", "cannot be printed", id="NUL"),
    ],
)
def test_a_bad_pattern_is_answered_in_a_sentence(pattern: str, said: str) -> None:
    with pytest.raises(PatternError, match=said):
        matching(NAMES, pattern)


def test_a_pattern_that_backtracks_for_ever_elsewhere_is_answered() -> None:
    assert matching(["a" * 5_000 + "b"], "(a+)+$") == []
    assert matching(["a" * 5_000], "(a|a)*b|(a*)*c") == []


def test_a11_of_more_names_than_any_run_has_the_first_are_searched() -> None:
    names = ["loss", *(f"{number:0500}" for number in range(1_000))]
    assert matching(names, "loss|^0") == names[: MAX_CHARACTERS // 500]


def test_pinned_metrics_come_first_and_each_is_drawn_once() -> None:
    asked = Choice(more=[NAMES[2]], pinned=[NAMES[3], "gone"])
    assert list(chosen(NAMES, NAMES[:2], asked).names) == [NAMES[3], *NAMES[:3]]
    asked = Choice(more=[NAMES[2]], pinned=[NAMES[1]], pattern="actor")
    assert list(chosen(NAMES, NAMES[3:], asked).names) == [NAMES[1], NAMES[0], NAMES[2]]


def test_more_charts_than_a_page_holds_are_left_out_and_counted() -> None:
    names = [f"m{at}" for at in range(MAX_CHARTS + 5)]
    found = chosen(names, [], Choice(pinned=names[-1:], pattern="m"))
    assert (found.names[0], len(found.names), found.left_out) == (names[-1], MAX_CHARTS, 5)
