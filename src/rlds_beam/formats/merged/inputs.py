"""The datasets to merge, each with the connectors that make its fields those of the others."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal, get_args

import msgspec

from rlds_beam import storage
from rlds_beam.connectors.configuration import Configuration, parse
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.metadata import convert, parse_given
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import UsageError
from rlds_beam.reading.base import Source
from rlds_beam.text import count

Fields = Literal["same", "common", "all"]
FIELDS: tuple[Fields, ...] = get_args(Fields)

Opener = Callable[[str, str | None, str | None, Mapping[str, Any]], Source]
"""Opens a dataset, given its path, split, format (None: recognized), and the options of the format by name."""


class InputMapping(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of the file of `--merge_fields`: how to read a dataset.

    Attributes:
      input: its path: `mix_batches` opens it, others check that it is the one they are given.
      from_, split, options: as the options of a job; `from` in the file.
      weight: its share of a mixture.
      names: the names of values that the dataset does not name.
      connectors: what makes its fields those of the others; connectors as in `--connectors`.
    """

    input: str | None = None
    from_: str | None = msgspec.field(default=None, name="from")
    split: str | None = None
    options: dict[str, Any] = {}
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    names: dict[str, tuple[str, ...]] = {}
    connectors: Any = None


class MergeMapping(msgspec.Struct, forbid_unknown_fields=True):
    """What `--merge_fields` says.

    Attributes:
      fields: what happens to fields that differ after the connectors of the datasets.
      same_units: whether the user has checked that the numbers have the same units.
      inputs: the entries of the file, in the order of the datasets; none if `--merge_fields` names no file.
      where: the option, for messages.
    """

    fields: Fields = "same"
    same_units: bool = False
    inputs: tuple[InputMapping, ...] = ()
    where: str = "--merge_fields"

    @classmethod
    def load(cls, given: str) -> MergeMapping:
        """Reads the value of `--merge_fields`: `same`, `common`, `all`, or a YAML or JSON file.

        Raises:
          UsageError: it is neither; or the file cannot be read or is wrong.
        """
        where = f"--merge_fields={given}"
        for fields in FIELDS:
            if given == fields:
                return cls(fields, where=where)
        if not given.endswith((".yaml", ".yml", ".json")):
            raise UsageError(f"{where}: expected {', '.join(FIELDS)}, or a YAML or JSON file")
        content = parse_given(storage.read_given(given, where), given, where)
        mapping: MergeMapping = convert(content, cls, where)
        for i, entry in enumerate(mapping.inputs):
            edits = {"connectors": entry.connectors or [], "names": {path: [*own] for path, own in entry.names.items()}}
            entry.connectors = parse(edits, f"{where}: inputs[{i}]")
        return msgspec.structs.replace(mapping, where=where)


@dataclasses.dataclass(frozen=True)
class MergedInput:
    """A dataset to merge.

    Attributes:
      path: where it is.
      name: what `source_dataset` says of its episodes: its name and version, and its number if others have these too.
      source: the dataset as it is.
      connecting: the connectors that make its fields those of the others.
    """

    path: str
    name: str
    source: Source
    connecting: ConnectorRunner

    @property
    def schema(self) -> Schema:
        """The schema after the connectors."""
        return self.connecting.schema

    @property
    def fps(self) -> float | None:
        """The rate after the connectors."""
        return self.connecting.source_after(self.source).fps


def open_inputs(
    paths: Sequence[str], split: str | None, mapping: MergeMapping, opener: Opener
) -> tuple[MergedInput, ...]:
    """Opens the datasets at these paths; reads only metadata.

    Raises:
      UsageError: one cannot be opened, or does not fit its entry of the mapping.
    """
    entries = mapping.inputs or tuple(InputMapping(connectors=Configuration()) for _ in paths)
    if len(entries) != len(paths):
        raise UsageError(f"{mapping.where}: {count(len(entries), 'input')} for {count(len(paths), 'dataset')}")
    opened = [
        _open_input(path, split, entry, f"{mapping.where}: inputs[{i}]", opener)
        for i, (path, entry) in enumerate(zip(paths, entries, strict=True))
    ]
    names = [source.dataset for source, _ in opened]
    names = [f"{name} ({i})" if names.count(name) > 1 else name for i, name in enumerate(names, 1)]
    return tuple(MergedInput(path, name, *pair) for path, name, pair in zip(paths, names, opened, strict=True))


def _open_input(
    path: str, split: str | None, entry: InputMapping, where: str, opener: Opener
) -> tuple[Source, ConnectorRunner]:
    """Opens a dataset, and tries its connectors.

    Raises:
      UsageError: it cannot be opened, is another one than the entry says, or a connector cannot be used here.
    """
    if entry.input is not None and os.path.realpath(storage.pin(entry.input)) != os.path.realpath(path):
        raise UsageError(f"{where}: its input is {entry.input}, not {path}: name the datasets in the file's order")
    source = opener(path, entry.split or split, entry.from_, entry.options)
    if not source.splits:
        raise UsageError(f"{path} has no episodes: it has no splits")
    if any(own.sliced for own in source.splits):
        raise UsageError(f"{path}: slices of splits cannot be merged: convert them with --split first")
    try:
        connecting = ConnectorRunner.for_source(entry.connectors, source)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from error
    if connecting.unfitted or connecting.splits or any(connecting.probed.modules.values()):
        raise UsageError(
            f"{where}: connectors: they may edit fields and steps, but neither add columns, choose splits, nor be "
            "fitted to the data: give such connectors to the job (--connectors)"
        )
    return source, connecting
