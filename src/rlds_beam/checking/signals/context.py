"""The fields of a dataset that the signals measure."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping

import numpy as np

from rlds_beam.checking.signals.base import BROKEN
from rlds_beam.checking.steps import is_clock
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import FLAGS, Field, Schema
from rlds_beam.images.encoded_images import EncodedImages

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
        """The roles of a schema's fields, by their names and dtypes.

        Raises:
          UsageError: a signal of an installed package cannot be used.
        """
        for error in BROKEN:
            raise error
        steps = {path: field for path, field in schema.steps.items() if path not in (*FLAGS, "reward", "discount")}
        clocks = tuple(path for path, field in steps.items() if is_clock(field))
        moving = [
            path
            for path, field in steps.items()
            if path not in clocks
            and field.dtype in _FLOATS
            and None not in field.shape
            and 0 < field.known_size <= MAX_DIMENSIONS
        ]
        texts = [
            path
            for path, field in (*schema.steps.items(), *schema.metadata.items())
            if field.dtype == "string" and not field.shape and _INSTRUCTION.fullmatch(path)
        ]
        return cls(
            tuple(path for path in moving if _ACTIONS.fullmatch(path)),
            tuple(path for path in moving if _STATES.fullmatch(path)),
            tuple(path for path, field in steps.items() if _is_camera(field)),
            clocks,
            tuple(texts),
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


def is_gripper(context: Context, path: str) -> bool:
    """Whether the name of a field, or of one of its values, says that it holds a gripper."""
    return any(_GRIPPER.fullmatch(name) for name in (path, *context.names.get(path, ())))


def find_gripper(context: Context, path: str, size: int) -> int | None:
    """The dimension of an action that may be the gripper: the one with that name, otherwise the last of at least 4."""
    names = context.names.get(path, ())
    named = [number for number, name in enumerate(names) if _GRIPPER.fullmatch(name)]
    if named and len(names) == size:
        return named[0]
    return size - 1 if size >= 4 or _GRIPPER.fullmatch(path) else None


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


def _is_camera(field: Field) -> bool:
    if field.holds_image_files:
        return field.dtype == "uint8"
    *_, channels = field.shape or (None,)
    return field.dtype == "uint8" and len(field.shape) == 3 and channels in (1, 3, 4) and field.known_size >= 256
