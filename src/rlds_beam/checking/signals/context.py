"""The fields of a dataset that the signals measure, and the delay of states after actions."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping

import numpy as np

from rlds_beam.checking.rates import is_clock
from rlds_beam.checking.signals.motion import Laid, Motion
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import FLAGS, Field, Schema
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.typing import Array

MAX_DIMENSIONS = 64
"""Fields with more values per step are not motion but embeddings, point clouds, or audio."""

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_ACTIONS = re.compile(r"actions?(_dict)?(/.*)?")
_STATES = re.compile(r"(observation|state)s?(/.*)?")
_INSTRUCTION = re.compile(r"(.*/)?(natural_)?(language_)?(instruction|task|language_instruction|language)s?", re.I)
_GRIPPER = re.compile(r"(.*[/_])?gripper.*", re.I)


@dataclasses.dataclass(frozen=True)
class Context:
    """The facts about a dataset that `measure` needs.

    Attributes:
      actions: the fields of actions with floats: motion that was commanded.
      states: the fields of observations with floats: motion that was measured.
      cameras: the fields of images.
      clocks: the fields of timestamps and frame numbers.
      instructions: the text fields with the task, of the steps and of the episode.
      fps: frames per second, if the dataset declares them.
      decoded: the number of images to decode per camera and episode; 0 for none.
      only: the signals to measure, if not all; then nothing is kept for comparing episodes.
      names: the names of the values of fields, by path.
    """

    actions: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    cameras: tuple[str, ...] = ()
    clocks: tuple[str, ...] = ()
    instructions: tuple[str, ...] = ()
    fps: float | None = None
    decoded: int = 0
    only: frozenset[str] | None = None
    names: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict, hash=False)

    @classmethod
    def of(cls, schema: Schema, *, fps: float | None = None, decoded: int = 0) -> Context:
        """The roles of a schema's fields, by their names and dtypes."""
        steps = {path: field for path, field in schema.steps.items() if path not in (*FLAGS, "reward", "discount")}
        clocks = tuple(path for path, field in steps.items() if is_clock(field))
        moving = {path for path, field in steps.items() if path not in clocks and _is_motion(field)}
        text = [path for fields in (schema.steps, schema.metadata) for path, field in fields.items() if _is_text(field)]
        return cls(
            tuple(path for path in steps if path in moving and _ACTIONS.fullmatch(path)),
            tuple(path for path in steps if path in moving and _STATES.fullmatch(path)),
            tuple(path for path, field in steps.items() if _is_camera(field)),
            clocks,
            tuple(text),
            fps,
            decoded,
            None,
            schema.names,
        )

    @classmethod
    def of_episode(cls, episode: Episode, *, fps: float | None = None, decoded: int = 0) -> Context:
        """The roles of an episode's fields, if its schema is not at hand."""
        return _of_fields(_fields(episode.steps), _fields(episode.metadata), fps, decoded)

    def wants(self, *signals: str) -> bool:
        """Whether any of these signals is measured."""
        return self.only is None or not self.only.isdisjoint(signals)

    @property
    def motion(self) -> tuple[str, ...]:
        """The fields of motion: actions, then states."""
        return (*self.actions, *self.states)


def is_gripper(path: str) -> bool:
    """Whether a field's name says that it holds a gripper."""
    return _GRIPPER.fullmatch(path) is not None


@functools.lru_cache(maxsize=64)  # episodes of a dataset have the same fields
def _of_fields(steps: tuple[Field, ...], metadata: tuple[Field, ...], fps: float | None, decoded: int) -> Context:
    schema = Schema({field.path: field for field in steps}, {field.path: field for field in metadata})
    return Context.of(schema, fps=fps, decoded=decoded)


def _fields(values: Mapping[str, object]) -> tuple[Field, ...]:
    fields = []
    for path, value in values.items():
        if isinstance(value, EncodedImages):
            fields.append(Field(path, value.dtype, value.shape, value.encoding))
        elif isinstance(value, (bytes, str)) or getattr(getattr(value, "dtype", None), "kind", "") == "O":
            fields.append(Field(path, "string", (), "text"))
        elif isinstance(value, (np.ndarray, np.generic)):
            fields.append(Field(path, value.dtype.name, value.shape[1:]))
    return tuple(fields)


def _is_motion(field: Field) -> bool:
    return field.dtype in _FLOATS and None not in field.shape and 0 < field.known_size <= MAX_DIMENSIONS


def _is_camera(field: Field) -> bool:
    if field.holds_image_files:
        return field.dtype == "uint8"
    *_, channels = field.shape or (None,)
    return field.dtype == "uint8" and len(field.shape) == 3 and channels in (1, 3, 4) and field.known_size >= 256


def _is_text(field: Field) -> bool:
    return field.dtype == "string" and not field.shape and bool(_INSTRUCTION.fullmatch(field.path))


MAX_LAG = 10
"""The largest lag that is tried, in steps."""
_MIN_STEPS = 15
"""Steps below which a correlation says nothing."""
_MAX_PAIRS = 4
_CORRELATED = 0.5
"""Correlation below which there is no lag: the state may not be what the action moves."""


def pairs(context: Context, sizes: Mapping[str, int]) -> list[tuple[str, str]]:
    """The actions and states that are compared: those with equally many dimensions, at least 2, at most `_MAX_PAIRS`.

    Fields with the same last name come first (`action/joint_position`, `observation/joint_position`).

    Args:
      sizes: field -> its number of dimensions.
    """
    found = [
        (action, state)
        for action in context.actions
        for state in context.states
        if sizes.get(action, 0) == sizes.get(state, 1) > 1
    ]
    return sorted(found, key=lambda pair: pair[0].rpartition("/")[2] != pair[1].rpartition("/")[2])[:_MAX_PAIRS]


def measure_lag(context: Context, motions: Mapping[str, Motion], laid: Laid) -> dict[str, Array]:
    """The lag of each episode (E,), and `#position`: whether the actions of the first pair are positions.

    The sum of all dimensions of the state's change is correlated with that of the action (velocities, differences) and
    of the action's change (positions), for each lag; the pair and the lag with the highest correlation count. Lag 0 is
    an action that changes the next step. LeRobot's visualizer shows the same cross-correlation.
    """
    compared = pairs(context, {path: len(motion.values) for path, motion in motions.items()})
    best, lag = np.zeros(len(laid.starts)), np.full(len(laid.starts), np.nan)
    first_is_position = np.zeros(len(laid.starts))
    for number, (action, state) in enumerate(compared):
        moved = motions[state].changes.sum(axis=0, dtype=np.float64)
        by_difference = _correlations(motions[action].values.sum(axis=0, dtype=np.float64), moved, laid, 1)
        by_position = _correlations(motions[action].changes.sum(axis=0, dtype=np.float64), moved, laid, 0)
        is_position = by_position.max(axis=0) > by_difference.max(axis=0)
        found = np.where(is_position, np.maximum(by_position.argmax(axis=0) - 1, 0), by_difference.argmax(axis=0))
        highest = np.maximum(by_difference.max(axis=0), by_position.max(axis=0))
        better = (highest > best) & (highest >= _CORRELATED) & (laid.lengths >= _MIN_STEPS)
        best, lag = np.where(better, highest, best), np.where(better, found, lag)
        if number == 0:
            first_is_position[better & is_position] = 1
    return {"lag": lag, "#position": first_is_position} if compared else {}


def _correlations(first: Array, second: Array, laid: Laid, shift: int) -> Array:
    """The correlation of first[t] with second[t + lag + shift] within each episode, (lags, E)."""
    first, second = (_standardize(values, laid) for values in (first, second))
    room = laid.starts + laid.lengths
    until = np.repeat(room, laid.lengths) - np.arange(len(first))  # steps to the end of the episode
    found = np.zeros((MAX_LAG + 1, len(laid.starts)))
    for lag in range(MAX_LAG + 1):
        by = lag + shift
        if by >= len(first):
            break
        products = np.zeros(len(first))
        products[: len(first) - by] = first[: len(first) - by] * second[by:]
        products[until <= by] = 0  # they would be products with the next episode
        found[lag] = np.add.reduceat(products, laid.starts) / np.maximum(laid.lengths, 1)
    return found


def _standardize(values: Array, laid: Laid) -> Array:
    centered: Array = values - np.repeat(np.add.reduceat(values, laid.starts) / laid.lengths, laid.lengths)
    power = np.sqrt(np.add.reduceat(np.square(centered), laid.starts) / laid.lengths)
    centered /= np.repeat(np.where(power > 0, power, 1.0), laid.lengths)
    return centered
