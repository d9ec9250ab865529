"""Makes a report of a dataset, and writes it as one file: the browser's page (`viewing/page`) with the data inside.

The file needs nothing else: style, scripts, images, and data are inside, and its Content-Security-Policy forbids
requests and any script but ours. Equal documents give equal bytes.

The modules of the page are joined into one script: each becomes a function that returns its exports, in the order in
which they need each other; `import {a} from "./b.js"` becomes `const {a} = $b`. Imports and exports are as those of
`page/`: named, at the start of a line.
"""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import Any, ClassVar

import msgspec

from rlds_beam import storage
from rlds_beam._version import __version__
from rlds_beam.checking.signals.episodes import Context
from rlds_beam.checking.signals.table import EpisodeTable
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.connectors.statistics.episode_statistics import Groups
from rlds_beam.datasets.opening import open_dataset
from rlds_beam.encoding.metadata import decode
from rlds_beam.errors import UsageError
from rlds_beam.jobs.summary import Summarize
from rlds_beam.output.commits import load_manifest, read_manifest
from rlds_beam.output.directory import Holding
from rlds_beam.output.files import REPORT
from rlds_beam.processing.job import Job, Stage, Totals
from rlds_beam.processing.report import Report, check_counts, left_out_lines
from rlds_beam.reading.base import Source
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.text import format_size, printable
from rlds_beam.trajectories.items import REASONS
from rlds_beam.viewing.episode_view import Json
from rlds_beam.viewing.report.dataset import Gathered, Settings, collect_rules, field_row, make_section


@dataclasses.dataclass(frozen=True)
class Input:
    """A dataset of a report. Picklable.

    Attributes:
      source: the dataset.
      settings: how it is shown.
      dataset_report: the report on the dataset as a whole (`processing.report.check_source`).
    """

    source: Source
    settings: Settings
    dataset_report: Report

    @property
    def context(self) -> Context:
        """The fields whose signals are measured."""
        return Context.from_schema(self.source.schema, fps=self.source.fps, decoded=self.settings.decode)

    def stages(self, connecting: ConnectorRunner, name: str, parts: str) -> Job:
        """The pass over the dataset: the signals, in files in `parts`, and the statistics after the connectors."""
        reader, measured = EpisodeReader(self.source), EpisodeTable(self.context)
        groups = functools.partial(Groups, None, None)
        check = self.settings.check
        return Summarize(reader, check, connecting, Gathered.from_summary, measured, parts, groups, name).job(
            self.source
        )

    def part(self, gathered: Gathered) -> Json:
        """Its part of the report; reads the episodes that it shows."""
        counts = check_counts(self.source, gathered.report.shards, self.settings.check)
        whole = self.dataset_report.merge(gathered.report, counts)
        return make_section(self.source, gathered._replace(report=whole), self.settings)


@dataclasses.dataclass(frozen=True)
class ReportOutcome:
    """The result of a `report` run.

    Attributes:
      report: the counts of the records read; None if the dataset is an output whose rows are not episodes.
      path: the file written.
      bytes: its size.
    """

    report: Report | None
    path: str
    bytes: int

    def __str__(self) -> str:
        return f"wrote     {self.path} ({format_size(self.bytes)}): open it in a browser"


@dataclasses.dataclass(frozen=True)
class ConversionView:
    """An output directory of rlds-beam that a report shows. Picklable.

    Attributes:
      path: the directory.
      held: what it holds.
      command: the beginning of the command that converts again.
      is_read: whether a source reads it as episodes; then it is the first input of the report.
    """

    path: str
    held: Holding
    command: tuple[str, ...]
    is_read: bool

    def section(self) -> Json:
        """The section on the conversion."""
        return describe_conversion(self.path, self.held, read_report(self.path))

    def part(self, part: Json | None) -> Json:
        """The part of the output (its items, if no source reads it) with the rules that records of the input broke."""
        shown = items_part(self.path, self.held) if part is None else part
        rules = collect_rules(read_report(self.path), {}, self.command)
        for rule in rules:
            for sample in rule["samples"]:  # an output in the same format has episodes with the keys of its input
                sample["key"] = f"rejected/{sample['key']}"
        return {**shown, "rules": [*rules, *shown["rules"]]}


@dataclasses.dataclass(frozen=True)
class ReportWriter:
    """Writes the report of a dataset. Picklable.

    Attributes:
      shown: the dataset; None for an output that no source reads as episodes.
      path: the file to write.
      command: the command that makes the report.
      conversion: the output directory that the dataset is, if rlds-beam wrote it.
    """

    shown: Input | None
    path: str
    command: str
    conversion: ConversionView | None = None

    def write(self, gathered: Gathered | None) -> ReportOutcome:
        """Writes the report, in place of an earlier one.

        Args:
          gathered: what a pass over the dataset found.
        """
        page = render(self.document(gathered)).encode()
        storage.write_bytes(self.path, page)
        return ReportOutcome(None if gathered is None else gathered.report, self.path, len(page))

    def stages(self, connecting: ConnectorRunner | None, parts: str) -> Job:
        """The stages that read the dataset and write the report: a `ReportOutcome`.

        Args:
          connecting: the connectors; None if the dataset is not read.
          parts: the directory for the signals of the ranges.
        """
        if self.shown is None or connecting is None:
            return (_Write(self),)
        return (*self.shown.stages(connecting, _Write.measured, parts), _Write(self))

    def document(self, gathered: Gathered | None) -> Json:
        """The content of the report, all that the page shows.

        All texts may come from a dataset, so they are not trusted. There are no time stamps, and equal inputs give
        equal bytes for any number of workers.
        """
        conversion = self.conversion
        part = None if self.shown is None or gathered is None else self.shown.part(gathered)
        if conversion is not None:
            part = conversion.part(part)
        assert part is not None
        return {
            "title": part["facts"]["name"],
            "dataset": part,
            "made": {"command": self.command, "version": __version__},
            "conversion": None if conversion is None else conversion.section(),
        }


@dataclasses.dataclass(frozen=True)
class _Write(Stage):
    """Writes the report; `measured` is the stage that reads the dataset."""

    measured: ClassVar[str] = "measured"

    writer: ReportWriter
    name = "write"

    def finish(self, total: Any, totals: Totals) -> ReportOutcome:
        return self.writer.write(totals.get(self.measured))


_MAX_CHARACTERS = 300


def read_report(path: str) -> Report:
    """report.json of an output directory.

    Raises:
      UsageError: the conversion is not finished, or the file is malformed.
    """
    file = storage.join(path, REPORT)
    if not storage.exists(file):
        raise UsageError(f"{path} has no {REPORT}: the conversion is not finished; run the same command again")
    return decode(file, Report)


def describe_conversion(path: str, held: Holding, report: Report) -> Json:
    """The description of a finished conversion. read = written + rejected + the sum of `dropped`, in records.

    Args:
      path: its output directory.
      held: `output.directory.holding` of it.
      report: `read_report` of it.
    """
    manifest = load_manifest(path) or {}
    steps = report.connectors[-1].steps_out if report.connectors else report.steps
    dropped = sum(counts.records for counts in report.dropped.values())
    return {
        "command": held.command,
        "to": held.to,
        "source": held.dataset,
        "version": str(manifest.get("written_by", "")),
        "read": report.records,
        "written": report.records - report.rejected - dropped,
        "rejected": report.rejected,
        "repaired": report.repaired,
        "dropped": [{"name": name, "records": counts.records} for name, counts in report.dropped.items()],
        "connectors": msgspec.to_builtins(report.connectors),
        "items": {"kind": held.kind, "items": report.items_written, "steps": steps},
        "unused": [
            {"reason": why, "meaning": REASONS[why][0], "remedy": REASONS[why][1], **msgspec.to_builtins(counts)}
            for why, counts in report.unused.items()
        ],
        "left_out": [printable(line, _MAX_CHARACTERS) for line in left_out_lines(report.left_out)],
    }


def items_part(path: str, held: Holding) -> Json:
    """The part of a report about items or rows, as `make_section`: only facts."""
    manifest = read_manifest(path)
    modules = list(manifest.get("modules", ()))
    dataset = open_dataset(path, module=modules[0] if modules else None, images="encoded")
    notes = [f"the rows are {held.kind}, so signals and rules of episodes do not apply"]
    notes += [f"columns of {modules[0]}; the other modules are {', '.join(modules[1:])}"] if modules[1:] else []
    shards = manifest["shards"]
    splits = []
    for name in sorted({shard["split"] for shard in shards}):
        own = [shard for shard in shards if shard["split"] == name]
        records, size = (sum(shard[key] for shard in own) for key in ("records", "bytes"))
        splits.append({"name": name, "episodes": records, "shards": len(own), "bytes": size, "slice": ""})
    fields = [field_row(dataclasses.replace(field, path=name), "step") for name, field in dataset.fields.items()]
    facts = {
        "name": f"{held.dataset} as {held.kind}",
        "path": path,
        "format": held.to,
        "file_format": str(manifest.get("format", "tfrecord")),
        "fps": None,
        "fields": fields,
        "splits": splits,
        "records": len(dataset),
        "repaired": 0,
        "rejected": 0,
        "episodes": 0,
        "steps": len(dataset),
        "bytes": sum(split["bytes"] for split in splits),
        "problems": [],
        "provenance": [],
        "card": [],
    }
    empty: Json = {
        name: [] for name in ("grid", "samples", "texts", "signals", "findings", "rules", "episodes", "unmeasured")
    }
    distributions: Json = {"length": None, "total": None, "fields": [], "left_out": 0}
    return {**empty, "facts": facts, "distributions": distributions, "notes": notes, "numbers": {}}


POLICY = (
    "default-src 'none'; img-src data:; style-src {style}; script-src {scripts}; base-uri 'none'; form-action 'none'"
)


def render(document: Json) -> str:
    """The report as HTML."""
    style, scripts = _file("uPlot.min.css") + _file("viewer.css"), _scripts()
    policy = POLICY.format(style=_digest(style), scripts=" ".join(map(_digest, scripts)))
    theme, *others = (f"<script>{script}</script>" for script in scripts)
    values = {
        "POLICY": policy,
        "STYLE": style,
        "THEME": theme,
        "DATA": json_data(document),
        "SCRIPTS": "\n".join(others),
    }
    return re.sub(r"<!--([A-Z]+)-->", lambda found: values[found[1]], _read("report.html"))


def json_data(value: Any) -> str:
    """JSON for `<script type="application/json">`: no `<`, `>`, or `&`, only ASCII, sorted names."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"), sort_keys=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _digest(content: str) -> str:
    """The hash that allows an inline script or style in a Content-Security-Policy."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode('ascii')}'"


@functools.cache
def _scripts() -> tuple[str, ...]:
    """The theme, uPlot, and the viewer with the data of its page instead of a server."""
    return _file("theme.js"), _file("uPlot.iife.min.js"), bundle("report.js", _file, {"source.js": "embedded.js"})


def _file(name: str) -> str:
    """A file of the page, or a vendored one, which may be inside `<style>` and `<script>`."""
    content = _read(name)
    assert not re.search("</(script|style)|<!--", content, re.IGNORECASE), f"{name} could end its element"
    return content


def _read(name: str) -> str:
    viewing = resources.files("rlds_beam.viewing")
    own = viewing / "page" / name
    return (own if own.is_file() else viewing / "vendored" / name).read_text(encoding="utf-8")


_IMPORT = re.compile(r'^(import|export) \{([^}]*)\} from "\./([\w.-]+)";$', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const) (\w+))", re.MULTILINE)
_EXPORTS = re.compile(r"\bexport\s*\{([^}]*)\};?\s*$")


def bundle(entry: str, read: Callable[[str], str], replaced: Mapping[str, str] = {}) -> str:
    """The module `entry` and all that it imports as one script.

    Args:
      entry: the name of a module.
      read: returns the text of a module.
      replaced: modules that are used instead of others, by name.

    Raises:
      ValueError: modules import each other in a circle, or a form of import or export is not known.
    """
    parts: dict[str, str] = {}
    open_names: list[str] = []

    def add(name: str) -> str:
        name = replaced.get(name, name)
        if name in open_names:
            raise ValueError(f"{' -> '.join([*open_names, name])}: modules import each other")
        if name not in parts:
            open_names.append(name)
            parts[name] = _convert(name, read(name), add)
            open_names.remove(name)
        return _variable(name)

    add(entry)
    body = "\n".join(f"const {_variable(name)} = (() => {{\n{text}}})();" for name, text in parts.items())
    return f'"use strict";\n(() => {{\n{body}\n}})();\n'


def _convert(name: str, text: str, add: Callable[[str], str]) -> str:
    exports: list[str] = []

    def link(found: re.Match[str]) -> str:
        kind, names, other = found.groups()
        pairs = [_pair(one) for one in names.split(",") if one.strip()]
        if kind == "export":
            exports.extend(f"{new}: {add(other)}.{old}" for old, new in pairs)
            return ""
        return f"const {{ {', '.join(f'{old}: {new}' for old, new in pairs)} }} = {add(other)};"

    def keep(found: re.Match[str]) -> str:
        exports.extend(f"{new}: {old}" for old, new in map(_pair, found[1].split(",")))
        return ""

    text = _IMPORT.sub(link, text)
    exports.extend(f"{found}" for found in _EXPORT.findall(text))
    text = _EXPORTS.sub(keep, _EXPORT.sub("", text))
    if re.search(r"^(import|export)\b", text, re.MULTILINE):
        raise ValueError(f"{name}: this form of import or export is not known")
    return f"{text.rstrip()}\nreturn {{ {', '.join(exports)} }};\n"


def _pair(text: str) -> tuple[str, str]:
    """The two names of `a as b`."""
    old, _, new = text.strip().partition(" as ")
    return old, new or old


def _variable(name: str) -> str:
    return "$" + re.sub(r"\W", "_", name.removesuffix(".js"))
