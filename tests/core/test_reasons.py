"""Why a process ended: each exception gives an exit code and a documented reason, and rules match what is written."""

import json

import pytest
from trainer_errors import ENDS

from dapo_core import errors
from dapo_core.jobspec.operations import FailureRule
from dapo_core.run.failure_policy import Failure, matches
from dapo_core.run.last_words import LastWords, ending
from dapo_core.run.reasons import FORMER, OF_EXIT_CODE, ExitCode, Reason, error_for, reason_of


@pytest.mark.parametrize(("error", "code", "reason", "message"), ENDS.values(), ids=ENDS.keys())
def test_what_a_process_says_of_an_exception(error: BaseException, code: int, reason: str, message: str) -> None:
    assert ending(error) == (code, LastWords(reason, message))


def test_an_error_in_another_process_may_be_of_both_classes() -> None:
    class Both(type(ENDS["a Ray fault, by its last line"][0]), errors.DataError):  # type: ignore[misc]
        pass

    assert ending(Both("Traceback", errors.DataError("row 3"))) == (ExitCode.DATA, LastWords("BadData", "row 3"))


def test_every_exception_of_the_platform_gives_a_documented_reason() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, errors.DapoError)]
    given = {kind: ending(kind([]) if kind is errors.SpecError else kind("x")) for kind in kinds}
    assert len(given) > 9
    assert all(words.reason in set(Reason) and code in set(ExitCode) for code, words in given.values())


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (11, errors.DataError),
        (30, errors.DistributedFaultError),
        (31, errors.StoreError),
        (143, errors.StoppedError),
        (1, errors.DapoError),
        (77, errors.DapoError),
    ],
)
def test_an_error_can_be_raised_again_elsewhere(code: int, kind: type[errors.DapoError]) -> None:
    assert error_for(code) is kind


def test_every_exit_code_has_a_reason() -> None:
    assert set(OF_EXIT_CODE) == set(ExitCode)
    assert [reason_of(code) for code in (None, 77, 1)] == [Reason.CRASHED] * 3


@pytest.mark.parametrize(("error", "code", "reason", "message"), ENDS.values(), ids=ENDS.keys())
def test_a_rule_that_names_the_reason_matches(error: BaseException, code: int, reason: str, message: str) -> None:
    rule = FailureRule.model_validate({"action": "Fail", "reasons": [reason]})
    exit_code, words = ending(error)
    assert matches(rule, Failure(exit_code, words.reason, words.message))
    assert matches(rule, Failure(exit_code)) == (reason not in ("CheckpointUnusable",))


@pytest.mark.parametrize(("former", "reason"), FORMER.items(), ids=FORMER.keys())
def test_former_spellings_are_understood(former: str, reason: str) -> None:
    words = LastWords.parse(f'{{"reason": "{former}", "message": "m"}}')
    assert words == LastWords(reason, "m")
    for spelling in (former, reason):
        rule = FailureRule.model_validate({"action": "Fail", "reasons": [spelling]})
        assert matches(rule, Failure(1, reason))


@pytest.mark.parametrize(
    ("address", "kept"),
    [("10.0.0.7", "10.0.0.7"), ("fd00::7", "fd00::7"), ("gpu-7; rm", None), (7, None), ("", None), (None, None)],
)
def test_last_words_name_the_pod_that_raised_the_error_by_its_address(address: object, kept: str | None) -> None:
    error = RuntimeError("NCCL error")
    error.ip = address  # type: ignore[attr-defined]  # as Ray's errors of tasks have it
    assert ending(error)[1].address == kept
    read = LastWords.parse(json.dumps({"reason": "Crashed", "message": "m", "address": address}))
    assert read is not None
    assert read.address == kept
