"""docs/commands.md: every subcommand of `dapo` with its arguments and options, as the command itself declares them."""

import inspect
from collections.abc import Iterator
from typing import Any, get_args

from dapo_core.cli.main import HELP, command_of, entry_points

_HEAD = """# Commands

Every subcommand of `dapo`, its arguments and its options. `dapo COMMAND --help` prints the same.
This page is generated: `make generate` writes it.

Exit codes are listed in [architecture.md](architecture.md#exit-codes-and-last-words), environment variables in
[environment.md](environment.md).
"""


def page() -> str:
    """The whole page as Markdown. Loads every subcommand, so each extra of the distribution has to be installed."""
    points = entry_points()
    if missing := [name for name in HELP if name not in points]:
        raise SystemExit(f"The installed package lacks the commands {missing}: run scripts/setup.sh.")
    names = [*HELP, *sorted(points.keys() - HELP.keys())]
    sections = [line for name in names for line in _section(f"dapo {name}", command_of(name, points[name]))]
    return "\n".join([_HEAD, *sections]).rstrip() + "\n"


def options() -> set[str]:
    """The long options of all subcommands."""
    points = entry_points()
    return {name for key in points for name in _long(command_of(key, points[key]))}


def _long(command: Any) -> Iterator[str]:
    for sub in getattr(command, "commands", {}).values():
        yield from _long(sub)
    yield from (name for parameter in command.params for name in parameter.opts if name.startswith("--"))


def _section(title: str, command: Any) -> Iterator[str]:
    subcommands = getattr(command, "commands", None)
    yield f"{'#' * len(title.split())} {title}\n"
    yield inspect.cleandoc(command.help or "").strip() + "\n"
    if subcommands:
        for name, sub in subcommands.items():
            yield from _section(f"{title} {name}", sub)
        return
    arguments = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
    usage = " ".join([title, "[OPTIONS]", *(_metavar(argument) for argument in arguments)])
    yield f"```\n{usage}\n```\n"
    rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows:
        yield "\n".join(["| argument or option | meaning | default |", "|---|---|---|", *rows]) + "\n"


def _metavar(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name.upper())
    name = name[1:-1] if name.startswith("[") and name.endswith("]") else name
    name = f"{name}..." if parameter.nargs == -1 or parameter.multiple else name
    return name if parameter.required else f"[{name}]"


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{_metavar(parameter)}`"
    else:
        names = ", ".join(f"`{option}`" for option in [*parameter.opts, *parameter.secondary_opts])
        name = names if parameter.is_flag else f"{names} {_value(parameter)}"
    return f"| {name} | {_cell(parameter.help or '')} | {_default(parameter)} |"


def _value(parameter: Any) -> str:
    shown: str = parameter.metavar or parameter.bare_type()
    choices = get_args(parameter.type_descriptor.annotation)
    if choices and not parameter.metavar and all(isinstance(choice, str) for choice in choices):
        shown = "|".join(choices)
    return "`" + shown.replace("|", "\\|") + "`"


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required or default is None or default in ((), [], "", False) or callable(default):
        return ""
    return f"`{default}`" if default is not True else "on"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
