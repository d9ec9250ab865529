"""Runs OpenVLA's and Octo's trajectory functions on our episodes."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from rlds_beam.connectors.base import EpisodeConnector
from rlds_beam.connectors.cleaning.selection import end_episode, with_value
from rlds_beam.connectors.fields import StepFields
from rlds_beam.episodes.columns import flatten, nest
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.errors import UsageError
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.user_functions import resolve

Trajectory = dict[str, Any]
_ADDED = ("_len", "_traj_index", "_frame_index", "traj_metadata")


def _is_dataset_transform(function: Any) -> bool:
    """Whether a function is named like OpenVLA's and Octo's, so a file may name it although it is not marked."""
    return isinstance(function, types.FunctionType) and function.__name__.endswith("_dataset_transform")


@dataclasses.dataclass(frozen=True)
class TransformTrajectory(EpisodeConnector):
    """Runs a trajectory function, for example OpenVLA's or Octo's `*_dataset_transform`, unchanged.

        {"observation": {"state": (T, 7), "image": (T,)}, "action": {"world_vector": (T, 3), …}, "is_first": (T,), …}
                ->   function   ->
        {"observation": {"state": (T, 7), "image": (T,)}, "action": (T, 7), "language_instruction": (T,), …}

    The function gets nested dicts of arrays as dlimp reads RLDS, with text and encoded images as bytes. They include
    `traj_metadata`, the episode fields repeated T times, and `_len`, `_traj_index` (0), and `_frame_index`. It returns
    arrays, or TensorFlow tensors (extra `tf`), with the same number of steps or fewer. It may remove and move fields.
    If it cuts steps at the ends, the new first and last steps get `is_first` and `is_last`. A name with a slash is
    passed both flat and nested, because OpenVLA's function for kuka reads `clip_function_input/base_pose_tool_reached`.

    Attributes:
      function: a function, or its `module:function`. A file can only name functions that are marked with
        `configurable` or end in `_dataset_transform`.
    """

    function: str | Callable[[Trajectory], Mapping[str, Any]]
    functions: ClassVar = {"function": _is_dataset_transform}

    def __post_init__(self) -> None:
        if isinstance(self.function, str):
            object.__setattr__(self, "function", resolve(self.function, "TransformTrajectory: function"))

    def edit(self, episode: Episode, fields: StepFields) -> Episode:
        trajectory = _trajectory(episode)
        transformed = self.function(trajectory)  # type: ignore[operator]
        if not isinstance(transformed, Mapping):
            raise UsageError(f"TransformTrajectory: the function returned a {type(transformed).__name__}, not a dict")
        steps: dict[str, Column] = {}
        for name, value in transformed.items():
            if name not in _ADDED:
                steps |= {path: _column(path, leaf) for path, leaf in flatten(value, name).items()}
        lengths = {len(column) for column in steps.values()}
        if len(lengths) != 1 or not lengths <= {*range(1, len(episode) + 1)}:
            sizes = ", ".join(f"{path} {len(column)}" for path, column in steps.items())
            raise UsageError(
                f"TransformTrajectory: {episode.key} has {len(episode)} steps; the function returned {sizes}"
            )
        if lengths != {len(episode)}:  # steps were cut
            if "is_first" in steps:
                steps["is_first"] = with_value(steps["is_first"], 0, True)
            if "is_last" in steps and not np.asarray(steps["is_last"])[-1]:
                ended = "is_terminal" in steps and bool(np.asarray(steps["is_terminal"])[-1])
                steps = end_episode(steps, terminated=ended)
        return episode.replace(steps=steps)


class _Images(np.ndarray[Any, Any]):
    """Encoded images that keep their metadata through slices."""

    kind: EncodedImages | None = None

    def __array_finalize__(self, other: Any) -> None:
        self.kind = getattr(other, "kind", None)


def _trajectory(episode: Episode) -> Trajectory:
    """The steps as dlimp passes them; the function may write into the dicts and the arrays."""
    leaves: dict[str, Any] = {}
    for path, column in episode.steps.items():
        if isinstance(column, EncodedImages):
            leaves[path] = column.data.copy().view(_Images)
            leaves[path].kind = column[:0]
        else:
            leaves[path] = np.array(column)
    trajectory, count = nest(leaves), len(episode)
    for path, leaf in leaves.items():  # names that contain a slash
        top, _, rest = path.partition("/")
        if "/" in rest:
            trajectory[top][rest] = leaf
    metadata: dict[str, Any] = {}
    for path, value in episode.metadata.items():
        text = isinstance(value, (str, bytes))
        metadata[path] = np.full(count, value, object) if text else np.repeat(np.asarray(value)[None], count, axis=0)
    return {
        **trajectory,
        "traj_metadata": nest(metadata),
        "_len": np.full(count, count, np.int32),
        "_traj_index": np.zeros(count, np.int64),
        "_frame_index": np.arange(count, dtype=np.int32),
    }


def _column(path: str, value: Any) -> Column:
    """Converts a returned array or tensor to a column."""
    if hasattr(value, "numpy"):  # TensorFlow's
        value = value.numpy()
    if isinstance(value, _Images) and value.kind is not None:
        return value.kind.with_data(np.asarray(value))
    array = np.asarray(value)
    if array.ndim == 0:
        raise UsageError(f"TransformTrajectory: {path} was returned as {value!r}, without an axis of steps")
    if array.dtype.kind in "SU":
        texts = [v.encode() if isinstance(v, str) else v for v in array.ravel().tolist()]
        array = np.fromiter(texts, object, len(texts)).reshape(array.shape)
    return array
