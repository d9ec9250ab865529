"""The datasets to merge, each with the connectors that make its fields those of the others."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal, cast, get_args

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


class InputMapping(msgspec.Struct, forbid_unknown_fields=True):
    """An entry of the file of `--merge_fields`: how to read a dataset.

    Attributes:
      input: its path: `mix_batches` opens it, others check that it is the one they are given.
      from_, split, options: as the options of a job; `from` in the file.
      weight: its share of a mixture.
      connectors: what makes its fields those of the others; a list, or all that a file of `--connectors` may say.
    """

    input: str | None = None
    from_: str | None = msgspec.field(default=None, name="from")
    split: str | None = None
    options: dict[str, Any] = {}
    weight: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    connectors: Any = None


class MergeMapping(msgspec.Struct, forbid_unknown_fields=True):
    """What `--merge_fields` says.

    Attributes:
      fields: what happens to fields that differ after the connectors of the datasets.
      same_units: whether the user has checked that the numbers have the same units.
      inputs: the entries of the file, in the order of the datasets; none if `--merge_fields` names no file.
    """

    fields: Fields = "same"
    same_units: bool = False
    inputs: tuple[InputMapping, ...] = ()

    @classmethod
    def load(cls, given: str) -> MergeMapping:
        """Reads the value of `--merge_fields`: `same`, `common`, `all`, or a YAML or JSON file.

        Raises:
          UsageError: it is neither; or the file cannot be read or is wrong.
        """
        where = f"--merge_fields={given}"
        if given in get_args(Fields):
            return cls(cast("Fields", given))
        if not given.endswith((".yaml", ".yml", ".json")):
            raise UsageError(f"{where}: expected {', '.join(get_args(Fields))}, or a YAML or JSON file")
        mapping: MergeMapping = convert(parse_given(storage.read_text(given), given, where), cls, where)
        for i, entry in enumerate(mapping.inputs):
            entry.connectors = parse(entry.connectors or [], f"{where}: inputs[{i}]")
        return mapping


@dataclasses.dataclass(frozen=True)
class MergedInput:
    """A dataset to merge.

    Attributes:
      path: where it is.
      name: what `source_dataset` says of its episodes: its name and version, and its number if others have these too.
      source: the dataset; its rate is the one after the connectors.
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


def open_inputs(
    paths: Sequence[str], split: str | None, mapping: MergeMapping, given: str, opener: Callable[..., Source]
) -> tuple[MergedInput, ...]:
    """Opens the datasets at these paths, and tries their connectors; reads only metadata.

    Args:
      given: the value of `--merge_fields`, for messages.
      opener: opens a dataset, as `formats.inputs.open_source`.

    Raises:
      UsageError: one cannot be opened, is another one than its entry of the mapping says, or does not fit it.
    """
    entries = mapping.inputs or tuple(InputMapping(connectors=Configuration()) for _ in paths)
    if len(entries) != len(paths):
        raise UsageError(f"--merge_fields={given}: {count(len(entries), 'input')} for {count(len(paths), 'dataset')}")
    inputs = []
    for i, (path, entry) in enumerate(zip(paths, entries, strict=True)):
        where = f"--merge_fields={given}: inputs[{i}]"
        if entry.input is not None and os.path.realpath(storage.pin(entry.input)) != os.path.realpath(path):
            raise UsageError(f"{where}: its input is {entry.input}, not {path}: name the datasets in the file's order")
        source = opener(path, entry.split or split, from_=entry.from_, options=entry.options)
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
        inputs.append(MergedInput(path, source.dataset, connecting.source_after(source), connecting))
    names = [member.name for member in inputs]
    return tuple(
        dataclasses.replace(member, name=f"{member.name} ({i})") if names.count(member.name) > 1 else member
        for i, member in enumerate(inputs, 1)
    )
