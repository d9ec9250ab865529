"""Write RLDS as TFDS stores it, with the episodes that passed the checks and connectors, and provenance.json."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Self

from rlds_beam import naming, storage
from rlds_beam._version import __version__
from rlds_beam.connectors.base import Batch
from rlds_beam.connectors.fields import OUTPUT_SPLIT
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.arrayrecord import check_writable
from rlds_beam.encoding.metadata import encode, load_json, parse_json
from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, FEATURES, TfdsMetadata, dataset_info_json
from rlds_beam.encoding.tfds.features import parse_features
from rlds_beam.encoding.tfds.rlds_dataset import edited_features, same_storage
from rlds_beam.episodes.episode import Episode
from rlds_beam.episodes.schema import Schema
from rlds_beam.errors import BadEpisode, RldsBeamError, UsageError
from rlds_beam.formats.format_options import ColumnsFormat, RldsOptions
from rlds_beam.formats.rlds.records import RecordEncoder
from rlds_beam.output.base import Description, HoldsLastActions
from rlds_beam.output.commits import VERSION, EarlierOutput, RangeCommit, split_infos
from rlds_beam.output.files import FITTED, REPORT
from rlds_beam.output.plans import Inputs, read_inputs, read_plan
from rlds_beam.output.shards import RecordFileWriter, WrittenFile, open_record_file
from rlds_beam.reading.base import Source, WorkRange
from rlds_beam.reading.decoding import EpisodeDecoder
from rlds_beam.reading.meaning import MEANING, LastAction, Meaning

_PROVENANCE = "provenance.json"
_MAX_SHARDS = 10_000
"""Those of a split with more shards are not listed."""
_FROM_INFO = ("citation", "description", "location", "redistributionInfo", "releaseNotes")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_NAME = re.compile(r"[a-z][a-z0-9_]*", re.IGNORECASE)
_LICENSE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE)[\w.-]*")

_CARRIED = (
    "description",
    "citation",
    "location",
    "redistributionInfo",
    "releaseNotes",
    "moduleName",
    "configName",
    "configDescription",
    "configTags",
    "supervisedKeys",
    "disableShuffling",
)
"""Keys of dataset_info.json that still hold for the edited dataset."""


@dataclasses.dataclass(frozen=True)
class RldsOutput(HoldsLastActions):
    """An RLDS dataset in TFDS's layout, with a record for each episode.

    Attributes:
      directory: where the files go.
      name: the name of the dataset, or of the directory if it is called `NAME/1.0.0`.
      version: the version of the dataset, or of the directory.
      format: the file format.
      schema: the schema of written episodes.
      stored: how input records store their fields; None if they are not RLDS.
      features: the text of features.json.
      info: the content of the input's dataset_info.json without its splits.
      files_beside: the bytes of other files that belong to the data, by file name.
      earlier: the provenance of the input dataset.
      splits: the splits to divide episodes among; if empty, episodes stay in their split.
      meaning: what `MEANING` says.
      appended_to: the directory of the output that is appended to; None if there is none.
    """

    directory: str
    name: str
    version: str
    format: ColumnsFormat
    schema: Schema
    stored: Schema | None
    features: str
    info: Mapping[str, Any]
    files_beside: Mapping[str, bytes]
    earlier: Any = None
    splits: tuple[str, ...] = ()
    meaning: Meaning = dataclasses.field(default_factory=Meaning)
    appended_to: str | None = None

    options_class = RldsOptions
    writes_splits = True
    input_facts = ("rlds.info", "rlds.files")

    @classmethod
    def create(cls, source: Source, connectors: ConnectorRunner, directory: str, options: RldsOptions) -> RldsOutput:
        splits = connectors.splits
        edited = connectors.connectors or connectors.schema != source.schema
        schema = _written_schema(connectors.schema) if edited else connectors.schema
        kind = options.format
        if kind == "array_record":
            check_writable(directory)
        if splits and len(source.splits) > 1:
            known = ", ".join(split.name for split in source.splits)
            raise UsageError(f"--connectors: SplitEpisodes divides one split: use --split=NAME; there are {known}")
        tfds = source.details.tfds or TfdsMetadata("")
        if tfds.outside:
            raise UsageError(
                f"--to=rlds copies {tfds.outside[0]} into the output, but in {source.dataset} it is a link to a file "
                "outside the dataset: replace the link with the file"
            )
        stored = None if source.details.tfds is None else source.schema
        if stored is not None and _is_unchanged(schema, stored):
            features = tfds.features
        else:
            features = encode(edited_features(schema, tfds.features, stored))
        name, version = name_and_version(directory, source.dataset)
        files = dict(tfds.files)
        earlier = parse_json(files[_PROVENANCE], f"{source.dataset}: {_PROVENANCE}") if files.get(_PROVENANCE) else None
        meaning = source.meaning.of_fields(schema)
        return cls(directory, name, version, kind, schema, stored, features, tfds.info, files, earlier, splits, meaning)

    def append_to(self, earlier: EarlierOutput, ranges: Sequence[WorkRange], directory: str) -> Self:
        del ranges
        info = earlier.plan.content["rlds"]["info"]
        return dataclasses.replace(self, directory=directory, info=info, files_beside={}, appended_to=earlier.directory)

    @property
    def last_action(self) -> LastAction:
        return self.meaning.last_action

    def _read_carried(self) -> dict[str, bytes]:
        return {name: content for name, content in self.files_beside.items() if name != _PROVENANCE}

    def plan(self) -> dict[str, Any]:
        described = {"format": self.format, "features": json.loads(self.features), "info": self.info}
        files = {name: _plan_entry(content) for name, content in self.files_beside.items()}
        return {"rlds": {**described, **self.meaning.entry(), "files": files, "splits": self.splits}}

    def describe(self) -> Description:
        written = self.schema.recorded
        steps = (f"steps/{field}" for field in written.steps.values())
        return Description([*steps, *map(str, written.metadata.values())])

    def encoder(self) -> RecordEncoder:
        """Encodes episodes as records."""
        return RecordEncoder(self.schema, self.stored)

    def verify(self, record: bytes, episode: Episode) -> None:
        """Decodes a record with the features.json that will be written, as TFDS will.

        Raises:
          RldsBeamError: it does not match features.json, so nobody could read the dataset.
        """
        declared = parse_features(self.features, FEATURES)
        steps, metadata = (
            {path: field for path, field in fields.items() if field.fast}
            for fields in (declared.steps, declared.metadata)
        )
        try:
            EpisodeDecoder(Schema(steps, metadata)).decode(record, episode.key)
        except BadEpisode as bad:
            raise RldsBeamError(
                f"--to=rlds: the record of {episode.key} does not match {FEATURES}, so nobody could read it: {bad}. "
                "Its source or a connector returns other values than declared, or this is a bug: please report it"
            ) from bad

    def file(self, work: WorkRange) -> str:
        return self.files(work)[0]

    def files(self, work: WorkRange) -> tuple[str, ...]:
        """The names that TFDS expects: one for each output split."""
        splits = self.splits or (work.split,)
        return tuple(naming.shard_name(self.name, split, self.format, work.number) for split in splits)

    def open_range(self, work: WorkRange) -> RldsWriter:
        return RldsWriter(self, work)

    def complete(self, commits: Sequence[RangeCommit]) -> dict[str, Any]:
        """Writes the metadata. Splits without episodes are left out, and their empty files removed."""
        files = [pair for commit in commits for pair in zip(self.splits or (commit.split,), commit.files, strict=True)]
        splits = split_infos(self.directory, files)
        dataset_info = dataset_info_json(self.name, self.version, splits, file_format=self.format)
        if splits:
            info = {name: self.info[name] for name in _CARRIED if name in self.info}
            self._write(FEATURES, self.features)
            self._write(DATASET_INFO, encode({**dataset_info, **info}))
            if self.meaning.to_json():
                self._write(MEANING, encode(self.meaning.to_json()))
            for name, content in self._read_carried().items():
                storage.write_bytes(storage.below(self.directory, name), content)
        self._write(_PROVENANCE, encode(self._provenance(dataset_info["splits"])))
        return {"name": self.name, "version": self.version, "format": self.format}

    def _provenance(self, splits: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        plan = read_plan(self.directory)
        assert plan is not None  # the plan stays in the directory until the end
        fitted = storage.join(self.directory, FITTED)
        results = load_json(fitted).get("results") if storage.exists(fitted) else None
        source = {
            "info": self.info,
            "licences": [name for name in self.files_beside if _LICENSE.fullmatch(name)],
            "provenance": self.earlier,
        }
        report, inputs = load_json(storage.join(self.directory, REPORT)), read_inputs(self.directory, plan.content)
        if self.appended_to is not None:
            earlier = load_json(storage.join(self.appended_to, _PROVENANCE))
            return _appended_provenance(earlier, _provenance(plan.content, inputs, report, splits, source))
        return _provenance(plan.content, inputs, report, splits, source, results)

    def _write(self, name: str, text: str) -> None:
        storage.write_text(storage.below(self.directory, name), text)


class RldsWriter:
    """Writes episodes to one file, or one for each split (`processing.ranges.RangeWriter`).

    Attributes:
      predicted: the number of episodes so far.
    """

    def __init__(self, output: RldsOutput, work: WorkRange):
        self.predicted = 0
        self._encoder, self._names = output.encoder(), output.files(work)
        self._splits, self._output, self._verified = output.splits, output, False
        self._counts = [0] * len(self._names)
        self._files: list[RecordFileWriter] = []
        try:
            for name in self._names:
                self._files.append(open_record_file(output.format, storage.below(output.directory, name)))
        except BaseException:
            self.abort()
            raise

    def write(self, batch: Batch) -> None:
        records = [(self._place(e), e, self._encoder.encode(e, batch.read)) for e in batch.episodes]
        read = batch.read
        if not self._verified:
            for _, episode, record in records:
                if read is None or record is not read.payload:  # already decoded when read
                    self._verified = True
                    self._output.verify(record, episode)
                    break
        for place, episode, record in records:  # nothing can fail after encoding
            crc = read.payload_crc if read is not None and record is read.payload else None
            self._files[place].add(record, episode.key, crc)
            self._counts[place] += 1
        self.predicted += len(records)

    def _place(self, episode: Episode) -> int:
        """The index of the episode's file."""
        if not self._splits:
            return 0
        split = episode.metadata[OUTPUT_SPLIT]
        return self._splits.index(split.decode() if isinstance(split, bytes) else str(split))

    def finish(self) -> tuple[WrittenFile, ...]:
        written = zip(self._names, [file.commit() for file in self._files], self._counts, strict=True)
        return tuple(WrittenFile(*file) for file in written)

    def abort(self) -> None:
        for file in self._files:
            file.abort()


def _plan_entry(content: bytes) -> str:
    """A file's entry in the plan: its text, or its digest if it is not UTF-8."""
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _written_schema(schema: Schema) -> Schema:
    """The schema to write, given the schema of what connectors return.

    A discount that input records lack is written, since connectors may have changed it. The output split is not.
    """
    steps = {
        p: dataclasses.replace(f, optional=False, feature="Scalar") if f.optional else f
        for p, f in schema.steps.items()
    }
    return Schema(steps, {path: field for path, field in schema.metadata.items() if path != OUTPUT_SPLIT})


def _is_unchanged(schema: Schema, stored: Schema) -> bool:
    """Whether the fields, and how they are stored, are the same."""
    pairs = ((schema.steps, stored.steps), (schema.metadata, stored.metadata))
    return all(
        new.keys() == old.keys() and all(same_storage(field, old[path]) for path, field in new.items())
        for new, old in pairs
    )


def name_and_version(directory: str, dataset: str) -> tuple[str, str]:
    """The name and version of the directory, if it is `…/NAME/1.0.0` as in TFDS, or else of the source's dataset."""
    parent, last = storage.split(directory.rstrip("/"))
    above = storage.split(parent)[1]
    own = dataset.split("/")
    version = next((v for v in (last, own[-1]) if _VERSION.fullmatch(v)), VERSION)
    of_config = above in own[1:-1]  # …/NAME/CONFIG/1.0.0
    named = _VERSION.fullmatch(last) and _NAME.fullmatch(above) and not of_config
    return (above if named else own[0]), version


def _provenance(
    plan: Mapping[str, Any],
    inputs: Inputs,
    report: Mapping[str, Any],
    splits: Sequence[Mapping[str, Any]],
    source: Mapping[str, Any],
    fitted: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """The content of provenance.json. It has nothing about this machine, so equal plans give equal bytes.

    Args:
      plan: the content of plan.json.
      inputs: the plan's input.
      report: the content of report.json.
      splits: the splits in dataset_info.json.
      source: facts about the input: its dataset_info.json (`info`), the names of its license files (`licences`), and
        its own provenance, if rlds-beam wrote it (`provenance`).
      fitted: the results of fitting connectors, the statistics of the dataset.
    """
    shards = {
        split: [{"file": file.name, "bytes": file.size, "fingerprint": file.content} for file in entry.shards()]
        for split, entry in inputs.items()
        if plan["splits"][split]["shards"] <= _MAX_SHARDS
    }
    slices = {split: entry["slice"] for split, entry in plan["splits"].items() if entry["slice"] != [0, None]}
    info = {name: source["info"][name] for name in _FROM_INFO if name in source["info"]}
    read = {"from": plan["from"], "features_sha256": plan.get("features_sha256")}
    counts = {name: report[name] for name in ("records", "valid", "repaired", "rejected")}
    dropped = {name: entry["records"] for name, entry in report.get("dropped", {}).items()}
    facts = {
        "written_by": f"rlds-beam {__version__}",
        "source": {
            "dataset": plan["dataset"],
            **read,
            "info": info,
            "licences": list(source["licences"]),
            "shards": shards,
            **({"slices": slices} if slices else {}),
        },
        "check": plan["check"],
        "connectors": plan.get("connectors", {"connectors": []}),
        "counts": {**counts, "dropped": dropped, "written": report["items_written"]},
        "rules": {rule: {k: v for k, v in entry.items() if k != "samples"} for rule, entry in report["rules"].items()},
        "splits": [{"name": split["name"], "episodes": sum(map(int, split["shardLengths"]))} for split in splits],
    }
    facts |= {"statistics": list(fitted)} if fitted else {}
    return facts | ({"source_provenance": source["provenance"]} if source["provenance"] else {})


def _appended_provenance(earlier: Any, added: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of an output after an append.

    Args:
      earlier: its provenance before.
      added: that of the append, with the counts and splits of the whole.
    """
    source, new = dict(earlier["source"]), added["source"]
    shards = {split: list(entries) for split, entries in source["shards"].items()}
    for split, entries in new["shards"].items():
        shards.setdefault(split, []).extend(entries)
    others = [*source.get("appended", []), *([] if new["dataset"] == source["dataset"] else [new["dataset"]])]
    source |= {"shards": shards, **({"appended": list(dict.fromkeys(others))} if others else {})}
    whole = {name: added[name] for name in ("written_by", "counts", "rules", "splits")}
    return {**earlier, **whole, "source": source}
