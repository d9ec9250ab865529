"""Minari datasets (HDF5): `minari.MinariDataset("OUTPUT/data")`.

An RLDS episode of N steps has N observations, like a Minari episode of N - 1 steps:

    RLDS      o0 a0 r0   o1 a1 r1   o2 (void)
    Minari    observations o0 o1 o2   actions a0 a1   rewards r0 r1   terminations / truncations of the 2 steps

Other step fields go to Minari's infos, N values each. Episode fields go to a group that Minari ignores; `--from=minari`
reads both.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from rlds_beam import storage
from rlds_beam.connectors.fields import StepFields
from rlds_beam.connectors.runner import ConnectorRunner
from rlds_beam.episodes.columns import below
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import ADD_ACTIONS, FLAGS, Field
from rlds_beam.errors import UsageError
from rlds_beam.formats.arrays.hdf5_writer import EpisodeDataset, check_h5py, write_hdf5
from rlds_beam.formats.arrays.leaves import (
    LeafColumn,
    field_json,
    leaves_below,
    make_columns,
    not_representable,
    scalar,
    single,
)
from rlds_beam.formats.arrays.parts import MergedOutput, Part, PartColumn
from rlds_beam.formats.format_options import ImageOptions
from rlds_beam.formats.minari import gym_spaces
from rlds_beam.formats.minari.episode_datasets import EPISODE, MinariColumn
from rlds_beam.output.base import Description
from rlds_beam.output.completion import MergedFile
from rlds_beam.output.shards import LocalFile
from rlds_beam.reading.base import Source
from rlds_beam.reading.meaning import Meaning
from rlds_beam.typing import Array

METADATA, MAIN = "metadata.json", "main_data.hdf5"
VERSION = "0.5.4"
OWN = "rlds_beam"
"""Key in metadata.json, and in an episode's group, of data for `--from=minari` only."""


@dataclasses.dataclass(frozen=True)
class MinariOutput(MergedOutput):
    """A Minari dataset for each split.

    Attributes:
      directory, name, splits: see `MergedOutput`.
      columns: the columns of an episode.
      fields: the RLDS fields of the observation, the action and the reward.
      jpeg: whether images in observations are JPEGs.
      left_out: the fields not written, with the reasons.
      meaning: what is known of the dataset.
    """

    directory: str
    name: str
    splits: tuple[str, ...]
    columns: tuple[MinariColumn, ...]
    fields: StepFields
    jpeg: bool
    left_out: dict[str, str]
    meaning: Meaning = dataclasses.field(default_factory=Meaning)

    options_class = ImageOptions

    @classmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: ImageOptions) -> MinariOutput:
        check_h5py("minari")
        schema, fields, left_out = connectors.schema, connectors.configuration.fields, dict[str, str]()
        jpeg = options.images == "jpeg"
        reward = single(leaves_below(schema, fields.rewards, {}), "reward", "minari")
        columns = [
            *_columns(schema.steps, fields.obs, "observations", "step", left_out, jpeg),
            *_columns(schema.steps, fields.actions, "actions", "transition", left_out, jpeg),
            MinariColumn(scalar(reward, "reward", "minari").field, "rewards", "transition"),
        ]
        for role, name in (("observation", "observations"), ("action", "actions")):
            if not any(below(column.place, name) for column in columns):
                hint = f"; {ADD_ACTIONS}" if role == "action" else ""
                raise UsageError(f"--to=minari: the dataset has no {role} that Minari can hold{hint}")
        roles = (fields.obs, fields.actions, fields.rewards, *FLAGS)
        for path, field in schema.steps.items():
            if not any(below(path, role) for role in roles):
                columns += _info(field, left_out)
        columns += [column for field in schema.metadata.values() for column in _of_episode(field, left_out)]
        splits = tuple(split.name for split in source.splits)
        left_out[f"{fields.actions}, {fields.rewards} (last step)"] = "void in RLDS, and absent in Minari"
        return cls(directory, source.name, splits, tuple(columns), fields, jpeg, left_out, Meaning.of_dataset(source))

    def folder(self, split: str) -> str:
        """The directory of a split's dataset: Minari's own name if there is only one split."""
        return "data" if len(self.splits) == 1 else split

    @property
    def metadata(self) -> tuple[str, ...]:
        return tuple(f"{self.folder(split)}/{name}" for split in self.splits for name in (MAIN, METADATA))

    def stored_names(self) -> Iterator[tuple[str, str]]:
        yield from ((column.field.path, column.place) for column in self.columns)

    def plan(self) -> dict[str, Any]:
        return {"minari": {"version": VERSION, "images": "jpeg" if self.jpeg else "raw", **self._about()}}

    def _about(self) -> dict[str, Any]:
        """Facts for `--from=minari`."""
        columns = [
            {"place": column.place, "of": column.of, "jpeg": column.jpeg, **field_json(column.field)}
            for column in self.columns
        ]
        return {"columns": columns, **self.meaning.entry()}

    def describe(self) -> Description:
        held = [f"{column.place}: {column.field}" for column in self.columns]
        return Description([*held, "terminations: bool", "truncations: bool"], self.left_out)

    @property
    def _datasets(self) -> list[EpisodeDataset]:
        ends = [MinariColumn(Field(name, "bool"), name, "transition") for name in _ENDS]
        return [column.dataset for column in (*self.columns, *ends)]

    @property
    def part_columns(self) -> tuple[PartColumn, ...]:
        return tuple(column for dataset in self._datasets for column in dataset.part_columns)

    def encode(self, episode: Episode) -> Sequence[Array]:
        if len(episode) < 2:
            raise not_representable("an episode of one step has no transition, which Minari needs")
        values = [rows for column in self.columns for rows in column.rows(episode)]
        ends = np.zeros((2, len(episode) - 1), bool)
        ends[0 if episode.steps["is_terminal"][-1] else 1, -1] = True
        return [*values, *ends]

    def note(self, about: dict[str, Any], values: Sequence[Array]) -> None:
        at = 0
        for column in self.columns:
            rows = values[at : at + column.width]
            at += column.width
            about[column.place] = column.extend_range(about.get(column.place), rows)

    def merge(self, split: str, parts: Sequence[Part]) -> Iterator[MergedFile]:
        folder, episodes = self.folder(split), sum(map(len, parts))
        rewards = f"{EPISODE}/rewards"
        with LocalFile(storage.below(self.directory, folder, MAIN)) as file:
            write_hdf5(file.name, parts, self._datasets, groups=[_INFOS], total_steps=rewards)
            written = file.commit(episodes)
        column = [column.name for column in self.part_columns].index(rewards)
        steps = sum(int(part.rows[:, column].sum()) for part in parts)
        content = self._metadata(split, [part.about for part in parts], episodes, steps, written.bytes)
        storage.write_text(storage.below(self.directory, folder, METADATA), json.dumps(content))
        yield MergedFile(f"{folder}/{MAIN}", split, written)

    def _metadata(
        self, split: str, about: Sequence[Mapping[str, Any]], episodes: int, steps: int, size: int
    ) -> dict[str, Any]:
        directory = storage.split(self.directory.rstrip("/"))[1]
        own = directory if re.fullmatch(r"[-\w]+-v\d+", directory) and len(self.splits) == 1 else None
        other = f"{self.name}-{split}" if len(self.splits) > 1 else self.name
        return {
            "dataset_id": own or re.sub(r"[^-\w]", "_", other) + "-v0",
            "minari_version": VERSION,
            "total_episodes": episodes,
            "total_steps": steps,
            "dataset_size": round(size / 1e6, 1),
            "data_format": "hdf5",
            "jpeg_encoding": self.jpeg,
            "observation_space": json.dumps(self._space("observations", about)),
            "action_space": json.dumps(self._space("actions", about)),
            "description": f"Converted from the RLDS dataset {self.name}, split {split}.",
            OWN: {**self._about(), "dataset": self.name, "split": split},
        }

    def _space(self, name: str, about: Sequence[Mapping[str, Any]]) -> gym_spaces.JsonSpace:
        columns = [column for column in self.columns if below(column.place, name)]
        spaces = {
            column.place[len(name) + 1 :]: column.space([a.get(column.place) for a in about]) for column in columns
        }
        return gym_spaces.nest_spaces(spaces)


_ENDS = ("terminations", "truncations")
_INFOS = f"{EPISODE}/infos"


def _columns(
    steps: Mapping[str, Field], role: str, name: str, of: Any, left_out: dict[str, str], jpeg: bool
) -> Iterator[MinariColumn]:
    for path in sorted(steps, key=lambda path: path.split("/")):
        if below(path, role):
            yield from _column(steps[path], name + path[len(role) :], of, left_out, jpeg)


def _info(field: Field, left_out: dict[str, str]) -> Iterator[MinariColumn]:
    yield from _column(field, f"infos/{field.path}", "step", left_out, jpeg=False)


def _of_episode(field: Field, left_out: dict[str, str]) -> Iterator[MinariColumn]:
    if field.holds_image_files:
        left_out[field.path] = "an image per episode"
    else:
        yield from _column(field, f"{OWN}/{field.path}", "episode", left_out, jpeg=False)


def _column(field: Field, place: str, of: Any, left_out: dict[str, str], jpeg: bool) -> Iterator[MinariColumn]:
    if field.dtype == "string" and not field.shape:
        yield MinariColumn(field, place, of)
        return
    for leaf in make_columns([field], left_out):
        yield MinariColumn(field, place, of, jpeg and _check_jpeg(leaf))


def _check_jpeg(leaf: LeafColumn) -> bool:
    """Whether Minari reads the column as JPEGs. Raises UsageError if it would fail."""
    if not gym_spaces.is_image(leaf.dtype, leaf.shape):
        return False
    if len(leaf.shape) == 3 and leaf.shape[-1] != 3:
        raise UsageError(
            f"--images=jpeg: Minari needs JPEGs with 3 channels, but {leaf.field} has {leaf.shape[-1]}: leave it out"
        )
    return True
