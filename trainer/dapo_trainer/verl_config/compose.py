"""Composes the whole configuration that verl runs with from a DAPOJob."""

import difflib
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig, OmegaConf

from dapo_core.errors import Problem, SpecError
from dapo_core.jobspec import DAPOJobSpec
from dapo_core.jobspec.leaves import leaves
from dapo_trainer.verl_config.kernels import check_sequence_parallel
from dapo_trainer.verl_config.overrides import overrides
from dapo_trainer.verl_config.placement import Paths, Placement
from dapo_trainer.verl_config.rejected_overrides import check_truncated_sampling, instead_of


def _config_folder() -> Path:
    """verl's own YAML folder, located without importing verl (and torch with it). Raises SpecError."""
    package = find_spec("verl")
    if package is None or not package.submodule_search_locations:
        raise SpecError(
            [Problem("spec", "verl is not installed: install dapo-platform with the extra `cpu` or `gpu`.")]
        )
    return Path(package.submodule_search_locations[0]) / "trainer" / "config"


@cache
def _defaults() -> DictConfig:
    with initialize_config_dir(config_dir=str(_config_folder()), version_base=None):
        return hydra_compose("ppo_trainer")


def _known_keys(config: DictConfig) -> list[str]:
    plain = OmegaConf.to_container(config, resolve=False)
    return [key for key, _ in leaves(plain, into_lists=False)]


def _exists(config: DictConfig, key: str) -> bool:
    """Whether verl's tree has `key`; below an open mapping (`engine_kwargs`) every key is valid."""
    parent, _, leaf = key.rpartition(".")
    node = OmegaConf.select(config, parent) if parent else config
    # `in` is False for a key whose value is missing (`???`).
    return isinstance(node, DictConfig) and (leaf in node.keys() or len(node) == 0)


def _check_user_overrides(user: Mapping[str, Any]) -> None:
    known = _known_keys(_defaults())
    problems = []
    for key, _ in leaves(user, into_lists=False):
        field = f"spec.verlOverrides.{key}"
        if key.startswith("dapo."):
            problems.append(Problem(field, f"{field} is reserved for the platform: set the job's field instead."))
        elif (instead := instead_of(key)) is not None:
            problems.append(Problem(field, f"{field} is a key of verl that has no effect here: {instead}."))
        elif not _exists(_defaults(), key):
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean {near[0]}?" if near else "`dapo plan --full` prints the valid keys."
            problems.append(Problem(field, f"{field} is not a key of verl's configuration: {hint}"))
    if problems:
        raise SpecError(problems)


def compose(spec: DAPOJobSpec, placement: Placement, paths: Paths) -> DictConfig:
    """verl's defaults, then the job, then `verlOverrides`; pure except for reading verl's YAML files.

    Raises SpecError for an override that is not a key of verl, and for one that would train on wrong numbers.
    """
    _check_user_overrides(spec.verl_overrides)
    config = _defaults().copy()
    OmegaConf.set_struct(config, False)
    for key, value in [*overrides(spec, placement, paths).items(), *leaves(spec.verl_overrides, into_lists=False)]:
        OmegaConf.update(config, key, value, merge=False, force_add=True)
    check_truncated_sampling(config)
    if placement.device == "cuda":
        check_sequence_parallel(config)
    return config
