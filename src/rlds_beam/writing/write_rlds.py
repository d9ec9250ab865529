"""`rlds_beam.write_rlds`: episodes of a program become a checked RLDS dataset, one by one."""

from __future__ import annotations

import dataclasses
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from rlds_beam.checking.rules import CheckOptions
from rlds_beam.checking.verdicts import Rejection
from rlds_beam.episodes.episode import Episode, EpisodeKey
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import BadEpisode, RldsBeamError, UsageError
from rlds_beam.output.directory import lock_output
from rlds_beam.processing.report import Report
from rlds_beam.text import count, format_size
from rlds_beam.writing.episodes import ArrayEpisodes
from rlds_beam.writing.keyed_parts import write_all
from rlds_beam.writing.rlds_sink import (
    SHARD_BYTES,
    RldsSink,
    WriteSettings,
    check_directory,
    describe_refusal,
    remove_all,
)
from rlds_beam.writing.step_columns import ImageEncoding, Images, check_images


@dataclasses.dataclass(frozen=True, repr=False)
class WriteOutcome:
    """A dataset that `write_rlds` has written.

    Attributes:
      directory: its directory, for `tfds.builder_from_directory`.
      schema: the fields of an episode.
      report: the counts: `report.episodes`, `report.steps`, `report.rejected`, and the broken rules.
      seconds: how long it took.
    """

    directory: str
    schema: Schema
    report: Report
    seconds: float

    def __repr__(self) -> str:
        return f"<WriteOutcome: {self.report.line()}; {self.directory}>"

    def __str__(self) -> str:
        return "\n".join([self.report.summary(), *self.lines()])

    def lines(self) -> list[str]:
        """The lines printed after the report."""
        size = format_size(self.report.bytes_written)
        return [f"output    {self.directory}: {count(self.report.episodes, 'episode')}, {size}"]


def write_rlds(
    directory: str | os.PathLike[str],
    episodes: Iterable[Any] | Mapping[str, Iterable[Any]],
    *,
    split: str = "train",
    name: str | None = None,
    version: str | None = None,
    description: str | None = None,
    fps: float | None = None,
    robot_type: str | None = None,
    names: Mapping[str, Sequence[str]] | None = None,
    images: ImageEncoding | Mapping[str, ImageEncoding] = "png",
    schema: Schema | None = None,
    check: CheckOptions | None = None,
    strict: bool = True,
    format: Literal["tfrecord", "array_record"] = "tfrecord",
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
) -> WriteOutcome:
    """Checks episodes of arrays and writes them as an RLDS dataset, which TFDS opens.

        episode = {"observation": {"state": states, "image": pixels}, "action": actions, "reward": rewards,
                   "language_instruction": "open the drawer", "terminated": True, "metadata": {"operator": "Ada"}}
        rlds_beam.write_rlds("data/my_robot/1.0.0", [episode])

    Runs in this process, without Beam, and holds one episode at a time; the disk needs room for the dataset twice.
    Arrays keep their dtype. The fields are those of the first episode. Reward (0), discount (1, then 0 if the episode
    terminates), and the flags `is_first`, `is_last`, and `is_terminal` are added if they are missing. The action,
    reward, and discount may have one value fewer than the observation: the last step of RLDS has none. The dataset
    exists only when all of it is written.

    Args:
      directory: the dataset's directory, best `NAME/1.0.0`.
      episodes: the episodes, for example a generator; or a dict of them, by split. An episode is a dict of step
        fields, nested or not: arrays, tensors, or lists with a value for each step, lists of PNG or JPEG files as
        bytes, or one text for all steps. Other keys: `metadata` (a dict, the episode's own fields), and `terminated`
        or `truncated` (how it ended; by default it was cut off). Also taken: `{"steps": [{...}, ...], ...}` as
        TFDS's builders yield it, and `rlds_beam.Episode`.
      split: the name of the split, if `episodes` is not a dict.
      name, version: of the dataset; by default those of the directory.
      description: describes the dataset.
      fps: steps per second.
      robot_type: the name of the robot.
      names: the names of the values of vectors, by field: `{"action": ["x", "y", "z", "gripper"]}`.
      images: how pixels (uint8 or uint16 arrays [T, height, width, channels]) are stored: `png` (exact), `jpeg`
        (lossy), or `raw`; or a dict of these by field. Encoded images are copied.
      schema: fields whose dtype and shape are given, for example `None` for a size that varies between episodes.
        Lists of numbers take its dtypes.
      check: the policy of each rule, as for other jobs.
      strict: stop at the first bad episode. Otherwise it is kept in `directory/rejected`, with the reason.
      format: the file format.
      shard_bytes: the size of a shard.
      overwrite: replace a dataset that rlds-beam wrote there.

    Raises:
      UsageError: an argument or the directory cannot be used; nothing was written.
      FailedRuleError: an episode breaks a rule; nothing remains of the dataset.
      RldsBeamError: the iterator failed; nothing remains of the dataset.
    """
    began, path = time.monotonic(), os.fspath(directory)
    by_split = _by_split(episodes, split)
    encodings = check_images(images)
    settings = WriteSettings.of(
        path,
        name=name,
        version=version,
        shard_bytes=shard_bytes,
        format=format,
        description=description,
        check=check,
        fps=fps,
        robot_type=robot_type,
        names=names,
    )
    check_directory(path, overwrite=overwrite)
    with lock_output(path):
        contents = _contents(by_split, settings.dataset)
        converter, read = first_schema(contents, encodings, schema, strict=strict)
        if converter is None:
            what = f"none of {count(len(read), 'episode')} could be read" if read else "there are no episodes"
            raise UsageError(f"write_rlds({path!r}): {what}, so the fields are unknown")
        elements = ((key.split, key.position, content) for key, content in itertools.chain(_drain(read), contents))
        try:
            sink = RldsSink(
                settings=settings, episodes=converter, splits=(*by_split,), strict=strict, finds_duplicates=True
            )
            report = write_all(sink, elements)
        except BaseException:
            remove_all(path)
            raise
    return WriteOutcome(path, converter.schema, report, time.monotonic() - began)


def _drain(read: list[Any]) -> Iterator[Any]:
    """The episodes already read, which are not held after that."""
    while read:
        yield read.pop(0)


def _by_split(episodes: Any, split: str) -> dict[str, Iterable[Any]]:
    """The episodes of each split."""
    if isinstance(episodes, Mapping):
        if {"observation", "action", "steps"} & {str(name).partition("/")[0] for name in episodes}:
            raise UsageError("episodes is one episode: pass a list of episodes, for example [episode]")
        if not episodes:
            raise UsageError("episodes is an empty dict: expected episodes by split")
        by_split = {str(name): own for name, own in episodes.items()}
    else:
        by_split = {split: episodes}
    for name, own in by_split.items():
        if not isinstance(own, Iterable) or isinstance(own, str | bytes | Mapping):
            raise UsageError(f"the episodes of split {name} are a {type(own).__name__}: expected a list or a generator")
    return by_split


def _contents(by_split: Mapping[str, Iterable[Any]], dataset: str) -> Iterator[tuple[EpisodeKey, Any]]:
    """All episodes with their keys, whose position is their number in the split."""
    for split, episodes in by_split.items():
        iterator = None
        for number in itertools.count():
            try:
                iterator = iter(episodes) if iterator is None else iterator
                content = next(iterator)
            except StopIteration:
                break
            except Exception as error:
                raise RldsBeamError(
                    f"episode {number} of split {split}: the iterator raised {type(error).__name__}: {error}. Nothing "
                    "remains of the dataset"
                ) from error
            yield EpisodeKey(dataset, split, 0, number), content
            del content


def first_schema(
    contents: Iterator[tuple[EpisodeKey, Any]], images: Images, declared: Schema | None, *, strict: bool
) -> tuple[ArrayEpisodes | None, list[tuple[EpisodeKey, Any]]]:
    """Reads episodes up to the first one that has a schema.

    Returns:
      What converts the episodes, None if none has a schema; and the episodes read.

    Raises:
      FailedRuleError: the first episode is bad, and `strict` is set.
    """
    read = []
    for key, content in contents:
        read.append((key, content))
        try:
            return ArrayEpisodes.of_first(content, images, declared), read
        except BadEpisode as bad:
            if strict:
                raise describe_refusal(
                    Rejection(key, bad.violations[0].rule, bad.violations, b""), key.position
                ) from None
            read[-1] = (key, Episode(key, {}, faults=bad.violations))
    return None, read
