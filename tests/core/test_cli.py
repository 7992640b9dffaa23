"""The `dapo` command: quick help, lazy commands, mistakes as sentences."""

import subprocess
import sys
from importlib.metadata import EntryPoint

import pytest
from typer.testing import CliRunner

from dapo_core.cli import main
from dapo_core.errors import DapoError, NotInstalledError, Problem, RunBusyError, SpecError, StoreError

RUNNER = CliRunner()
PYTHON = [sys.executable, "-c"]


def test_help_lists_every_command_and_loads_none() -> None:
    code = (
        "import sys; from typer.testing import CliRunner; from dapo_core.cli import main as cli;"
        "print(CliRunner().invoke(cli.app, ['--help']).output);"
        "print(*[m for m in sys.modules if m.startswith('dapo_') and m not in "
        "('dapo_core', 'dapo_core.cli', 'dapo_core.cli.main', 'dapo_core.errors', 'dapo_core.run', "
        "'dapo_core.run.reasons')], 'end')"
    )
    output = subprocess.run([*PYTHON, code], capture_output=True, text=True, check=True).stdout
    assert output.splitlines()[-1] == "end"
    for name, line in main.HELP.items():
        assert name in output and line in output


@pytest.mark.parametrize("name", sorted(main.entry_points()))
def test_help_line_is_the_commands_own(name: str) -> None:
    command = main.command_of(name, main.entry_points()[name])
    assert (command.help or "").splitlines()[0] == main.HELP[name]


def test_misspelled_command_gets_a_suggestion() -> None:
    result = RUNNER.invoke(main.app, ["shwo"])
    assert result.exit_code == 2
    assert "Did you mean 'show'" in result.stderr


def test_crd_and_version() -> None:
    assert "kind: CustomResourceDefinition" in RUNNER.invoke(main.app, ["crd"]).output
    assert RUNNER.invoke(main.app, ["version", "--short"]).output.strip().count(".") == 2
    assert "python" in RUNNER.invoke(main.app, ["version"]).output
    assert RUNNER.invoke(main.app, ["--version"]).output == RUNNER.invoke(main.app, ["version"]).output


@pytest.mark.parametrize(
    ("error", "code", "lines"),
    [
        pytest.param(
            SpecError([Problem("a", "a is 1: write 2."), Problem("b", "b is 2: write 3.")]),
            2,
            ["error: a is 1: write 2.", "error: b is 2: write 3."],
            id="a spec's problems",
        ),
        pytest.param(RunBusyError("Run x is busy."), 2, ["error: Run x is busy."], id="busy"),
        pytest.param(StoreError("No database."), 31, ["error: No database."], id="stores"),
        pytest.param(DapoError("Odd."), 1, ["error: Odd."], id="other"),
    ],
)
def test_mistakes_are_sentences(
    error: DapoError, code: int, lines: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr(main, "app", fail)
    with pytest.raises(SystemExit) as ended:
        main.main()
    assert (ended.value.code, capsys.readouterr().err.splitlines()) == (code, lines)


def test_missing_packages_are_named() -> None:
    with pytest.raises(NotInstalledError, match="`dapo x` needs not_there, which is not installed"):
        main.command_of("x", EntryPoint("x", "not_there:command", main.ENTRY_POINTS))
