"""Writes statistics in the formats of other projects.

    own              everything, as `DatasetStatistics.to_json`
    openvla          dataset_statistics.json of an OpenVLA or OpenVLA-OFT model: {dataset: {action, proprio, ...}}
    openvla_dataset  the file of their data loader: {action, proprio, num_...}, without the mask, which is an option
    octo             dataset_statistics.json of Octo: the same, with p01 and p99 for q01 and q99
    openpi           norm_stats.json of openpi: {norm_stats: {state, actions}}
    lerobot          meta/stats.json of LeRobot: {feature: {min, max, mean, std, count, q01, q10, q50, q90, q99}}

Statistics cover all transitions. OpenVLA's and Octo's own loaders also count the void action of each last step.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean

_BOUNDS = {"mean": "mean", "std": "std", "max": "max", "min": "min"}
_OPENVLA = {**_BOUNDS, "q01": "q01", "q99": "q99"}
_OCTO = {**_BOUNDS, "p01": "q01", "p99": "q99"}
_OPENPI = {"mean": "mean", "std": "std", "q01": "q01", "q99": "q99"}
_LEROBOT = ("min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99")

Format = Literal["own", "openvla", "openvla_dataset", "octo", "openpi", "lerobot"]


def statistics_in(
    format: str, content: Mapping[str, Any], *, action: str = "action", proprio: str | None = None
) -> dict[str, Any]:
    """Converts the statistics of a dataset to a project's file format.

    Args:
      format: one of `Format`.
      content: `DatasetStatistics.to_json()`, plus the name of the dataset as `dataset`.
      action, proprio: the fields of the action and of the robot's state. `proprio` is optional for OpenVLA (zeros
        without it) and Octo.

    Raises:
      UsageError: the format or a field does not exist.
    """
    if format == "own":
        return dict(content)
    if format == "lerobot":
        renamed = {path: path.replace("/", ".") for path in content["fields"]} | {"reward": "next.reward"}
        return {renamed[path]: _lerobot(leaf) for path, leaf in content["fields"].items()}
    counts = {"num_transitions": content["transitions"], "num_trajectories": content["episodes"]}
    of_action = find_leaf(content, action, "--action")
    of_state = None if proprio is None else find_leaf(content, proprio, "--proprio")
    if format in ("openvla", "openvla_dataset"):
        chosen = _pick(of_action, _OPENVLA)
        state = _pick(of_state, _OPENVLA) if of_state else {name: _zeros(value) for name, value in chosen.items()}
        if format == "openvla_dataset":
            return {"action": chosen, "proprio": state, **counts}
        # A model maps masked dimensions from [-1, 1] back to [q01, q99], so constant dimensions to their value.
        mask = [True] * len(of_action["mean"])
        return {content["dataset"].split("/")[0]: {"action": {**chosen, "mask": mask}, "proprio": state, **counts}}
    if format == "octo":
        state = {"proprio": _pick(of_state, _OCTO)} if of_state else {}
        return {"action": _pick(of_action, _OCTO), **state, **counts}
    if format == "openpi":
        if of_state is None:
            raise UsageError(
                "--format=openpi: norm_stats.json needs the robot's state; name its field with --proprio=PATH"
            )
        return {"norm_stats": {"state": _pick(of_state, _OPENPI), "actions": _pick(of_action, _OPENPI)}}
    formats = get_args(Format)
    raise UsageError(f"--format={format}: expected one of {', '.join(formats)}{did_you_mean(format, formats)}")


def find_leaf(content: Mapping[str, Any], path: str, flag: str) -> Mapping[str, Any]:
    """The statistics of a vector field; raises UsageError if there are none."""
    if path not in content["fields"]:
        near = did_you_mean(path, content["fields"])
        raise UsageError(f"{flag}={path}: no such numeric field, only {', '.join(content['fields']) or 'none'}{near}")
    leaf: Mapping[str, Any] = content["fields"][path]
    if not isinstance(leaf["mean"], list):
        raise UsageError(f"{flag}={path}: the field is a scalar, but the format needs a vector")
    return leaf


def _pick(leaf: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {theirs: leaf[ours] for theirs, ours in names.items()}


def _zeros(value: Any) -> Any:
    return [_zeros(entry) for entry in value] if isinstance(value, list) else 0.0


def _lerobot(leaf: Mapping[str, Any]) -> dict[str, Any]:
    """One leaf in LeRobot's format, in which every statistic has at least one axis."""
    values = {name: leaf[name] if isinstance(leaf[name], list) else [leaf[name]] for name in _LEROBOT}
    return {**values, "count": [leaf["count"]]}
