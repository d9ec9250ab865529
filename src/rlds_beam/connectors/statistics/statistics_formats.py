"""Statistics in the formats that other projects load.

    own              everything, as `DatasetStatistics.to_json`
    openvla          dataset_statistics.json beside a model of OpenVLA or OpenVLA-OFT: {dataset: {action, proprio, ...}}
    openvla_dataset  what their data loader takes: {action, proprio, num_...}, without the mask, which it is told
    octo             dataset_statistics.json of Octo: the same, with p01 and p99 for q01 and q99
    openpi           norm_stats.json of openpi: {norm_stats: {state, actions}}
    lerobot          meta/stats.json of LeRobot: {feature: {min, max, mean, std, count, q01, q10, q50, q90, q99}}

The numbers are those of all transitions. The loaders of OpenVLA and Octo also count the void action of each episode's
last step.
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
    """The statistics of a dataset as another project's file has them.

    Args:
      format: one of `Format`.
      content: `DatasetStatistics.to_json()`, with the name of the dataset as `dataset`.
      action, proprio: the fields that stand for the action and for the robot's state; `proprio` is optional for
        OpenVLA, which gets zeros, and for Octo.

    Raises:
      UsageError: there is no such format or field.
    """
    if format == "own":
        return dict(content)
    if format == "lerobot":
        return {_feature(path): _lerobot(leaf) for path, leaf in content["fields"].items()}
    counts = {"num_transitions": content["transitions"], "num_trajectories": content["episodes"]}
    of_action = leaf_of(content, action, "--action")
    of_state = None if proprio is None else leaf_of(content, proprio, "--proprio")
    if format in ("openvla", "openvla_dataset"):
        chosen = _picked(of_action, _OPENVLA)
        state = _picked(of_state, _OPENVLA) if of_state else {name: _zeros(value) for name, value in chosen.items()}
        if format == "openvla_dataset":
            return {"action": chosen, "proprio": state, **counts}
        # A model maps the dimensions of the mask from [-1, 1] back to [q01, q99], so constant ones to their value.
        mask = [True] * len(of_action["mean"])
        return {content["dataset"].split("/")[0]: {"action": {**chosen, "mask": mask}, "proprio": state, **counts}}
    if format == "octo":
        state = {"proprio": _picked(of_state, _OCTO)} if of_state else {}
        return {"action": _picked(of_action, _OCTO), **state, **counts}
    if format == "openpi":
        if of_state is None:
            raise UsageError("--format=openpi: norm_stats.json has the robot's state; name its field: --proprio=PATH")
        return {"norm_stats": {"state": _picked(of_state, _OPENPI), "actions": _picked(of_action, _OPENPI)}}
    formats = get_args(Format)
    raise UsageError(f"--format={format}: expected one of {', '.join(formats)}{did_you_mean(format, formats)}")


def leaf_of(content: Mapping[str, Any], path: str, flag: str) -> Mapping[str, Any]:
    """The statistics of one field of vectors; raises UsageError where there is none."""
    if path not in content["fields"]:
        near = did_you_mean(path, content["fields"])
        raise UsageError(f"{flag}={path}: no such field of numbers, only {', '.join(content['fields'])}{near}")
    leaf: Mapping[str, Any] = content["fields"][path]
    if not isinstance(leaf["mean"], list):
        raise UsageError(f"{flag}={path}: it is a scalar, and the format has vectors")
    return leaf


def _picked(leaf: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {theirs: leaf[ours] for theirs, ours in names.items()}


def _zeros(value: Any) -> Any:
    return [_zeros(one) for one in value] if isinstance(value, list) else 0.0


def _feature(path: str) -> str:
    """LeRobot's name: `observation.state`; `next.reward` for the reward that follows an observation."""
    return {"reward": "next.reward"}.get(path, path.replace("/", "."))


def _lerobot(leaf: Mapping[str, Any]) -> dict[str, Any]:
    """Every statistic has at least one axis there."""
    values = {name: leaf[name] if isinstance(leaf[name], list) else [leaf[name]] for name in _LEROBOT}
    return {**values, "count": [leaf["count"]]}
