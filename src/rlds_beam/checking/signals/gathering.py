"""Takes from each episode what the signals need, and measures many episodes together."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlds_beam.checking.signals import images, texts
from rlds_beam.checking.signals.context import Context
from rlds_beam.checking.signals.measuring import MeasuredSteps
from rlds_beam.checking.signals.motion import Laid
from rlds_beam.checking.signals.rows import Key, SignalRows
from rlds_beam.episodes.columns import is_numeric
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.images.encoded_images import EncodedImages

if TYPE_CHECKING:
    from rlds_beam.checking.verdicts import Verdict

Array: TypeAlias = "np.ndarray[Any, Any]"

_MOST_STEPS, _MOST_EPISODES, _MOST_BYTES = 1 << 13, 512, 8 << 20


class Block:
    """Collects episodes and measures them together: the numbers of each are the same in any block.

    Args:
      context: the fields to measure.
    """

    def __init__(self, context: Context):
        self.context = context
        self._keys: list[Key] = []
        self._values: dict[str, list[Any]] = {}
        self._lists: dict[str, list[float]] = {}
        self._lengths: list[int] = []
        self._void: list[bool] = []
        self._measured: list[int] = []
        self._columns: dict[str, list[Array | None]] = {p: [] for p in (*context.motion, *context.clocks, "reward")}
        self._repeats: dict[str, list[list[int]]] = {path: [] for path in context.cameras}
        self._paths: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
        self._hashes: list[int] = []
        self._steps = self._bytes = 0

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def full(self) -> bool:
        """Whether it is time to measure: columns are views of records, which stay in memory until then."""
        return len(self) >= _MOST_EPISODES or self._steps >= _MOST_STEPS or self._bytes >= _MOST_BYTES

    def add(self, episode: Episode, verdict: Verdict | None = None) -> None:
        """Adds an episode as read; with its verdict, if it was checked."""
        key, steps, row, length = episode.key, episode.steps, len(self), len(episode)
        values = self._add_texts(episode, length, row)
        if verdict is not None and verdict.rejected is not None:
            values["rule"], values["detail"] = verdict.rejected.rule, texts.text_of(verdict.rejected.detail)
        self._add_row(key, values)
        self._bytes += len(episode.payload)
        if not length:
            return
        self._steps += length
        self._measured.append(row)
        self._lengths.append(length)
        last: Any = steps.get("is_last")
        void = last is not None and bool(last[-1])
        self._void.append(void)
        for path, columns in self._columns.items():
            column: Any = steps.get(path)
            columns.append(column if column is not None and _is_plain(column) else None)
        self._hashes.append(self._hash(episode, length - void) if self.context.only is None else 0)
        for path in self.context.cameras:
            self._add_camera(path, steps.get(path), row)

    def _add_row(self, key: EpisodeKey, values: Mapping[str, Any]) -> None:
        if values.keys() - self._values.keys():
            for name in values:
                self._values.setdefault(name, [None] * len(self))
        for name, known in self._values.items():
            known.append(values.get(name))
        self._keys.append((key.dataset, key.split, key.shard, key.position, key.part))

    def _put(self, name: str, row: int, value: float) -> None:
        column = self._lists.setdefault(name, [])
        if len(column) < row:
            column += [np.nan] * (row - len(column))
        column.append(value)

    def _add_texts(self, episode: Episode, length: int, row: int) -> dict[str, Any]:
        """Adds the signals of texts and metadata; returns the values of the row."""
        values: dict[str, Any] = texts.scalars(episode.metadata) if episode.metadata else {}
        if length:
            self._put("wrong_metadata", row, texts.wrong_numbers(values, length) if values else 0.0)
        if length and self.context.instructions:
            found = texts.instructions(episode, self.context.instructions)
            first = next((text for one in found for text in one if text.strip()), None)
            if first is not None:
                values["instruction"] = first
            self._put("missing_instruction", row, float(first is None))
            self._put("generic_instruction", row, float(texts.is_generic(first or "")))
            self._put("instruction_changes", row, max(len(one) for one in found) - 1 if first is not None else 0)
        return values

    def _hash(self, episode: Episode, steps: int) -> int:
        """A hash of all actions; 0 if they are constant, so that two idle episodes are no duplicates."""
        import xxhash

        paths = tuple(episode.steps)
        if paths != self._paths[0]:
            self._paths = paths, tuple(path for path in paths if path.partition("/")[0] in ("action", "actions"))
        parts, constant = [], True
        for path in self._paths[1]:
            column = episode.steps[path]
            if not isinstance(column, EncodedImages) and column.dtype != object:
                data = column[:steps].tobytes()
                parts.append(data)
                constant = constant and data == data[: len(data) // max(steps, 1)] * steps
        return 0 if constant else xxhash.xxh3_64_intdigest(parts[0] if len(parts) == 1 else b"".join(parts)) or 1

    def _add_camera(self, path: str, column: Column | None, row: int) -> None:
        repeats = [] if column is None else images.repeated(column)
        if column is not None and repeats and len(repeats) == len(column) - 1 and images.is_uniform(column):
            repeats = []  # padding in place of a camera, which `black_images` shows
        self._repeats[path].append(repeats)
        if isinstance(column, EncodedImages) and column.seconds is not None and self.context.fps:
            # lerobot-doctor's issue 7: 128 of 170 episodes drift. A video that is too short breaks a rule.
            self._put(f"video_length/{path}", row, abs(column.seconds * self.context.fps - len(column)))
        pixels = images.sampled(column, self.context.decoded) if column is not None and self.context.decoded else []
        if pixels:
            table = np.array(pixels, np.float64)
            black, overexposed, _, *color = table.mean(axis=0).tolist()
            self._put(f"black_images/{path}", row, black)
            self._put(f"overexposed_images/{path}", row, overexposed)
            self._put(f"#sharpness/{path}", row, float(np.median(table[:, 2])))
            for name, value in zip(("red", "green", "blue"), color, strict=True):
                self._put(f"#{name}/{path}", row, value)

    def finish(self) -> SignalRows:
        """Measures the episodes; the block is empty afterward."""
        size = len(self)
        numbers = {name: np.array(column + [np.nan] * (size - len(column))) for name, column in self._lists.items()}
        numbers["steps"] = np.zeros(size)
        vectors: dict[tuple[str, str], Array] = {}
        if self._lengths:
            laid = Laid.of(self._lengths, self._void)
            at = np.array(self._measured, np.int64)
            numbers["steps"][at] = laid.lengths
            numbers["#actions"] = np.zeros(size, np.uint64)
            numbers["#actions"][at] = np.array(self._hashes, np.uint64)
            found = MeasuredSteps.of(self.context, laid, self._columns, self._repeats)
            for name, values in found.numbers.items():
                numbers[name] = np.full(size, np.nan)
                numbers[name][at] = values
            for key, rows in found.vectors.items():
                vectors[key] = np.full((size, rows.shape[1]), np.nan, np.float32)
                vectors[key][at] = rows
        made = SignalRows(self._keys, numbers, vectors, self._values)
        self.__init__(self.context)  # type: ignore[misc]
        return made


def _is_plain(column: Column) -> bool:
    return isinstance(column, np.ndarray) and column.dtype.kind != "O" and is_numeric(column)
