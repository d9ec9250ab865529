"""Episodes from dicts of arrays, and the schema of the first one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam.encoding.tfds.rlds_dataset import encode_example
from rlds_beam.episodes.columns import all_below, below, flatten
from rlds_beam.episodes.conformance import compare_with_schema
from rlds_beam.episodes.episode import Column, Episode, EpisodeKey
from rlds_beam.episodes.schema import Field, Schema, episode_flags
from rlds_beam.episodes.transitions import with_final_observation
from rlds_beam.errors import BadEpisode, UsageError, Violation
from rlds_beam.formats.arrays.array_episodes import discounts, with_last
from rlds_beam.typing import Array
from rlds_beam.writing.step_columns import (
    Images,
    as_step_column,
    as_value,
    encode_pixels,
    field_of_numbers,
    make_field,
    value_field,
)

METADATA = ("metadata", "episode_metadata")
"""Where a dict has the fields of the episode."""
ENDS = ("terminated", "truncated")
_VOID = ("action", "reward", "discount")
"""The fields that may have one value fewer than the observation: the last step of RLDS has none."""


@dataclasses.dataclass(frozen=True)
class ArrayEpisodes:
    """Converts dicts of arrays to episodes. Picklable.

    Attributes:
      images: how arrays of pixels are stored.
      schema: the schema of all episodes.
    """

    images: Images
    schema: Schema

    @classmethod
    def of_first(cls, content: Any, images: Images, declared: Schema | None = None) -> ArrayEpisodes:
        """Takes the schema from the first episode.

        Args:
          declared: fields whose dtype and shape are given.

        Raises:
          BadEpisode: it is no episode of arrays.
          UsageError: RLDS cannot store a field.
        """
        declared = _exact(declared or Schema({}))
        episode = cls(images, declared).columns(content, EpisodeKey("arrays", "train", 0, 0))
        steps = {path: declared.steps.get(path) or make_field(path, column) for path, column in episode.steps.items()}
        metadata = {p: declared.metadata.get(p) or value_field(p, value) for p, value in episode.metadata.items()}
        missing = [*(declared.steps.keys() - steps.keys()), *(declared.metadata.keys() - metadata.keys())]
        if missing:
            detail = f"the episode has no {missing[0]}, which the schema declares"
            raise BadEpisode(Violation("missing_field", detail, missing[0]))
        schema = Schema(steps, metadata)
        schema.check_flags("episode 0")
        schema.check_size("episode 0")
        return cls(images, schema)

    def episode(self, content: Any, key: EpisodeKey) -> Episode:
        """The episode, with its record as `payload`; one with faults if it cannot be written.

        Args:
          content: the dict, or an `Episode`.
          key: the key of the episode.
        """
        try:
            episode = self.columns(content, key)
        except BadEpisode as bad:
            return Episode(key, {}, faults=bad.violations)
        faults = tuple(compare_with_schema(episode, self.schema))
        # What does not match the schema is kept as it is, for `rejected/`.
        payload = _record(episode, None if faults else self.schema)
        if faults:
            return Episode(key, {}, payload=payload, faults=faults)
        metadata = {f"{METADATA[1]}/{path}": value for path, value in episode.metadata.items()}
        return episode.replace(payload=payload, metadata=metadata)

    def columns(self, content: Any, key: EpisodeKey) -> Episode:
        """The columns of an episode, not yet compared with the schema; raises BadEpisode if it has none."""
        if isinstance(content, Episode):
            if content.faults:
                raise BadEpisode(*content.faults)
            content = with_final_observation(content)  # in RLDS, a last action is void
            return Episode(key, content.steps, {_name(path): v for path, v in content.metadata.items()})
        steps, metadata, ends = _content(content)
        fields, values = self.schema.steps, self.schema.metadata
        given = {path: as_step_column(path, value, fields.get(path)) for path, value in steps.items()}
        columns = _align(given)
        length = len(next(iter(columns.values()))) if columns else 0
        columns |= _derive(columns, ends, length)
        stored = {path: encode_pixels(path, columns[path], fields.get(path), self.images) for path in sorted(columns)}
        own = {path: as_value(path, value, values.get(path)) for path, value in sorted(metadata.items())}
        return Episode(key, stored, own)


def _content(content: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The step fields of a dict, the episode's fields, and its ending.

    Also reads `{"steps": [...], ...}` as TFDS's builders yield it.
    """
    if not isinstance(content, Mapping):
        raise BadEpisode(Violation("not_an_example", f"a {type(content).__name__}, but expected a dict of arrays"))
    outer = dict(content)
    ends = {name: outer.pop(name) for name in ENDS if name in outer}
    metadata: dict[str, Any] = {}
    for name in METADATA:
        metadata |= _flat(outer.pop(name, {}), name)
    if "steps" in outer:
        steps = _flat(_of_steps(outer.pop("steps")), "steps")
        metadata |= _flat(outer, "metadata")
    else:
        steps = _flat(outer, "the episode")
    absent = [name for name in ("observation", "action") if not all_below(steps, name)]
    if absent:
        detail = f"the episode has no {absent[0]}, which RLDS requires; it has {', '.join(sorted(steps)) or 'nothing'}"
        raise BadEpisode(Violation("missing_field", detail, absent[0]))
    return steps, metadata, ends


def _flat(nested: Any, where: str) -> dict[str, Any]:
    """The leaves of nested dicts by path."""
    if not isinstance(nested, Mapping):
        raise BadEpisode(Violation("not_an_example", f"{where}: a {type(nested).__name__}, but expected a dict"))
    leaves = {path: v for name, value in nested.items() for path, v in flatten(value, str(name)).items()}
    for path in leaves:
        if "" in path.split("/"):
            raise BadEpisode(Violation("not_an_example", f"{where}: a field has an empty name: {path!r}"))
        parent = next((other for other in leaves if other != path and below(path, other)), None)
        if parent is not None:
            raise BadEpisode(Violation("not_an_example", f"{parent} is a value, so {path} cannot be below it", path))
    return leaves


def _of_steps(steps: Any) -> Any:
    """Steps as lists by path, if they are a list of dicts."""
    if isinstance(steps, Mapping) or not isinstance(steps, Sequence):
        return steps
    rows = [_flat(step, f"step {i}") for i, step in enumerate(steps)]
    for i, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            name = min(row.keys() ^ rows[0].keys())
            raise BadEpisode(Violation("missing_field", f"steps 0 and {i} have different fields", name, i))
    return {path: [row[path] for row in rows] for path in rows[0]} if rows else {}


def _align(given: Mapping[str, Column | bytes]) -> dict[str, Column]:
    """Columns of equal length: texts repeated, and void values for the last step if it has an observation alone."""
    lengths = {path: len(column) for path, column in given.items() if not isinstance(column, bytes)}
    observed = [lengths[path] for path in all_below(lengths, "observation")] or list(lengths.values())
    if not observed:
        raise BadEpisode(
            Violation("wrong_dtype_or_shape", "all fields are one text, so the number of steps is unknown")
        )
    steps = max(observed, key=observed.count)
    columns: dict[str, Column] = {}
    wrong: list[Violation] = []
    for path, column in given.items():
        if isinstance(column, bytes):
            columns[path] = np.full(steps, column, object)
        elif len(column) == steps - 1 and any(below(path, name) for name in _VOID):
            columns[path] = with_last(column)
        else:
            columns[path] = column
            if len(column) != steps:
                detail = f"{len(column)} values, but the observations have {steps}"
                wrong.append(Violation("unequal_lengths", detail, path))
    if wrong:
        raise BadEpisode(*wrong)
    return columns


def _derive(columns: Mapping[str, Column], ends: Mapping[str, Any], length: int) -> dict[str, Array]:
    """The flags, reward, and discount that an episode lacks."""
    if ends and "is_terminal" in columns:
        detail = f"the episode has both is_terminal and {', '.join(ends)}: give one of them"
        raise BadEpisode(Violation("not_an_example", detail, "is_terminal"))
    last = {name: _at_the_end(name, value) for name, value in ends.items()}
    terminal = last.get("terminated", not last.get("truncated", True))
    derived = {path: column for path, column in episode_flags(length, terminal=terminal).items() if path not in columns}
    if not all_below(columns, "reward"):
        derived["reward"] = np.zeros(length, np.float32)
    if not all_below(columns, "discount"):
        flags = columns.get("is_terminal", derived.get("is_terminal"))
        derived["discount"] = discounts(np.asarray(flags, bool).reshape(length))
    return derived


def _at_the_end(name: str, value: Any) -> bool:
    """Whether an episode ended so: one truth value, or one for each step, of which only the last may be true."""
    try:
        array = np.asarray(value, bool).ravel()
    except Exception as error:
        raise BadEpisode(Violation("wrong_dtype_or_shape", f"expected a truth value: {error}", name)) from None
    early = np.flatnonzero(array[:-1])
    if len(early):
        detail = f"True at step {early[0]} of {len(array)}: cut the data into episodes first"
        raise BadEpisode(Violation("unexpected_is_last", detail, name, int(early[0])))
    return bool(array[-1]) if len(array) else False


def _exact(declared: Schema) -> Schema:
    """Declared fields as they are stored: numbers that a tf.Example would round as bytes."""

    def stored(field: Field) -> Field:
        if field.dtype == "string" or field.encoding != "none":
            return field
        return field_of_numbers(field.path, field.numpy_dtype, field.shape)

    try:
        steps = {path: stored(field) for path, field in declared.recorded.steps.items()}
        metadata = {_name(path): stored(field) for path, field in declared.metadata.items()}
    except (BadEpisode, TypeError) as error:
        raise UsageError(f"schema: {error}") from error
    return Schema(steps, {path: dataclasses.replace(field, path=path) for path, field in metadata.items()})


def _name(path: str) -> str:
    """The path of an episode's field below `episode_metadata`, which all written datasets have."""
    return path.removeprefix(f"{METADATA[1]}/")


def _record(episode: Episode, schema: Schema | None) -> bytes:
    """The episode as a tf.Example; empty if what does not match the schema cannot be stored."""
    if schema is not None:
        return encode_example(episode, schema)
    try:
        own = {path: make_field(path, column) for path, column in episode.steps.items()}
        return encode_example(episode, Schema(own, {p: value_field(p, v) for p, v in episode.metadata.items()}))
    except (AttributeError, OverflowError, TypeError, ValueError, BadEpisode):
        return b""
