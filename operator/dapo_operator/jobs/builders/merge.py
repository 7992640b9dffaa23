"""A pod template over what the operator builds, merged as `kubectl patch --type strategic` merges pods. Pure."""

from collections.abc import Mapping
from typing import Any, Final

# By the last parts of the path: the field that tells the entries of a list apart. Other lists are replaced.
_KEYS: Final = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "volumeDevices": "devicePath",
    "ports": "containerPort",
    "imagePullSecrets": "name",
    "hostAliases": "ip",
    "topologySpreadConstraints": "topologyKey",
    "schedulingGates": "name",
    "resourceClaims": "name",
}
# Kubernetes would replace these; a template that tolerates one taint more does not mean to lose ours.
_ADDED: Final = frozenset({"tolerations", "envFrom"})


def merged(base: Any, over: Any, field: str = "") -> Any:
    """`over` on top of `base`; null removes a field."""
    if isinstance(base, Mapping) and isinstance(over, Mapping):
        keys = [*base, *(key for key in over if key not in base)]
        whole = {
            key: merged(base[key], over[key], key) if key in base and key in over else _only(key, base, over)
            for key in keys
        }
        return {key: value for key, value in whole.items() if value is not None}
    if isinstance(base, list) and isinstance(over, list):
        return _lists(base, over, field)
    return over


def _only(key: str, base: Mapping[str, Any], over: Mapping[str, Any]) -> Any:
    return over[key] if key in over else base[key]


def _lists(base: list[Any], over: list[Any], field: str) -> list[Any]:
    if field in _ADDED:
        return [*base, *(entry for entry in over if entry not in base)]
    key = _KEYS.get(field)
    if key is None or not all(isinstance(entry, Mapping) and key in entry for entry in (*base, *over)):
        return over
    mine = {entry[key]: entry for entry in over}
    known = {entry[key] for entry in base}
    changed = [merged(entry, mine[entry[key]]) if entry[key] in mine else entry for entry in base]
    return [*changed, *(entry for entry in over if entry[key] not in known)]
