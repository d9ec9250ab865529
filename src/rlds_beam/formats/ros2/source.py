"""ROS 2 bags and MCAP files as a source: `--from=ros2 --topics=FILE`.

A bag is a shard. A step takes the latest message of each topic at or before its time, never one from the future. An
episode of T complete frames has T steps: the action at t belongs to the observation at t, also in the last step. A
reward that the mapping does not name is zero.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.metadata import parse_yaml
from rlds_beam.episodes.episode import Column
from rlds_beam.episodes.schema import Field, Schema, by_path, episode_flags, text_field
from rlds_beam.errors import NeedsMappingError, UsageError
from rlds_beam.formats.arrays.array_episodes import (
    FLAG_FIELDS,
    NO_REWARD,
    ArrayDecoder,
    Arrays,
    SourceOfFiles,
    as_images,
    discounts,
    make_shard,
    no_features,
    select_splits,
    window_fields,
)
from rlds_beam.formats.format_options import Ros2Options
from rlds_beam.formats.ros2.bags import METADATA, Bag, bag_files, find_bags
from rlds_beam.formats.ros2.episodes import DROPPED, LACKING, START, TIMES, Ros2Format
from rlds_beam.formats.ros2.fields import FieldReader, field_reader
from rlds_beam.formats.ros2.mapping import OF_EPISODE, TopicMapping, parse_mapping
from rlds_beam.formats.ros2.messages import BadMessage, message_type
from rlds_beam.formats.ros2.proposal import proposal
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.base import Details, Shard
from rlds_beam.reading.meaning import Meaning
from rlds_beam.text import did_you_mean, shorten


@dataclasses.dataclass(frozen=True)
class Ros2Decoder(ArrayDecoder):
    """Decodes aligned messages into episodes.

    Attributes:
      schema: see `ArrayDecoder`.
      terminal: whether an episode ends in a terminal state.
    """

    terminal: bool

    def convert_arrays(self, arrays: Arrays) -> tuple[Mapping[str, Column], Mapping[str, Any]]:
        steps = len(arrays[TIMES])
        marks = episode_flags(steps, last=True, terminal=self.terminal)
        columns: dict[str, Column] = {**marks, "discount": discounts(marks["is_terminal"], real=True)}
        columns["reward"] = np.zeros(steps, np.float32)
        for path, field in self.schema.steps.items():
            if path in arrays and field.holds_image_files:
                columns[path] = EncodedImages(arrays[path], field.shape, field.dtype, field.encoding)
            elif path in arrays:
                columns[path] = arrays[path]
        return columns, {path: arrays[path][0] for path in self.schema.metadata if path in arrays}


@dataclasses.dataclass(frozen=True)
class Ros2Source(SourceOfFiles):
    """ROS 2 bags. Attributes: see `Source`."""

    files: Ros2Format

    options_class = Ros2Options

    @classmethod
    def open(
        cls,
        input: str | Sequence[str],
        *,
        split: str | None = None,
        features: str | None = None,
        options: Ros2Options | None = None,
    ) -> Ros2Source:
        no_features("ros2", features)
        options = options or Ros2Options()
        paths = find_bags(input)
        if options.topics is None:
            given = input if isinstance(input, str) else ",".join(input)
            raise NeedsMappingError(
                "--from=ros2 needs --topics=FILE, which maps topics to step fields: "
                f"rlds-beam inspect {shlex.quote(given)} --from=ros2 proposes one",
                propose=lambda: proposal(paths, given),
            )
        where = f"--topics={options.topics}"
        mapping = parse_mapping(parse_yaml(storage.read_text(options.topics), where), where)
        found = _readers(paths, mapping, where)
        readers = [dataclasses.replace(match, schema=as_images(match.schema, options.raw_images)) for match in found]
        files = Ros2Format(mapping, tuple(readers))
        shards = {"train": tuple(make_shard(files, i, path, _size(path)) for i, path in enumerate(paths))}
        root = input if isinstance(input, str) and storage.isdir(input) else paths[0].removesuffix(f"/{METADATA}")
        stem = storage.split(root.rstrip("/"))[1].removesuffix(".mcap").removesuffix(".db3")
        name = naming.to_name(stem)
        made = {"reward": Field("reward", "float32"), "discount": Field("discount", "float32"), **FLAG_FIELDS}
        made[TIMES] = Field(TIMES, "int64")
        read = [Field(START, "int64"), Field(DROPPED, "int64"), text_field(LACKING)]
        for reader in readers:
            read += window_fields(reader.schema, reader.field.window)
            read += [text_field(f"{reader.schema.path}_base")] if reader.field.frame else []
        fields = by_path(read, where)
        of_episode = {path: field for path, field in fields.items() if path.startswith(f"{OF_EPISODE}/")}
        steps = {path: field for path, field in fields.items() if path not in of_episode}
        schema = Schema({**made, **steps}, of_episode)
        decoder = Ros2Decoder(schema, mapping.end == "terminal")
        splits = select_splits(shards, split, name)
        meaning = Meaning(mapping.fps, last_action="real")
        rewards = [] if any(field.path == "reward" for field in mapping.fields) else [NO_REWARD]
        notes = (*rewards, "incomplete steps are dropped, and counted in each episode's metadata")
        return cls(f"{name}/1.0.0", schema, decoder, splits, files, meaning, Details(notes=notes))

    def plan(self) -> dict[str, Any]:
        return {"topics": msgspec.to_builtins(self.files.mapping)}

    def companions(self, shard: Shard) -> Sequence[str]:
        try:
            return [path for path in bag_files(shard.path) if path != shard.path]
        except OSError:
            return ()


def _size(path: str) -> int:
    try:
        return sum(storage.size(file) for file in bag_files(path))
    except OSError:
        return storage.size(path)


def _readers(paths: Sequence[str], mapping: TopicMapping, where: str) -> tuple[FieldReader, ...]:
    """The reader of each field, by the first message of its topic in any bag.

    Raises:
      UsageError: no bag has such a topic or message field, or no bag can be read.
    """
    found: dict[str, FieldReader] = {}
    topics: set[str] = set()
    problem = ""
    for path in paths:
        try:
            with Bag(path) as bag:
                topics |= bag.topics.keys()
                for field in mapping.fields:
                    if field.path not in found and field.topic in bag.topics:
                        first = bag.first(field.topic)
                        if first is not None:
                            found[field.path] = field_reader(field, message_type(bag.topics[field.topic]), first)
        except OSError as error:
            problem = problem or shorten(error, 500)
        except (AttributeError, BadMessage) as error:
            problem = problem or f"{path}: {shorten(error, 500)}"
        except UsageError as error:
            raise UsageError(f"{path}: {shorten(error, 500)}") from error
        if len(found) == len(mapping.fields):
            break
    lacking = {field.path: field.topic for field in mapping.fields if field.path not in found}
    if mapping.reference and mapping.reference not in topics:
        lacking["reference"] = mapping.reference
    for name, topic in lacking.items():
        if topic in topics:
            raise UsageError(f"{where}: {name}: {topic} has no readable message{f' ({problem})' if problem else ''}")
        if problem and not topics:
            raise UsageError(f"no bag can be read: {problem}")
        listed = f"the topics are {shorten(', '.join(sorted(topics)))}" if topics else "it has no topics"
        raise UsageError(
            f"{where}: {name}: no bag has the topic {topic}{did_you_mean(topic, topics, otherwise=listed)}"
        )
    return tuple(found[field.path] for field in mapping.fields)
