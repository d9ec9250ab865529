"""`rlds-beam compare`: the fields and episodes that differ between two versions of a dataset."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rlds_beam import storage, worker_status
from rlds_beam.formats.options import InputOptions
from rlds_beam.options import option
from rlds_beam.processing.job import Job, Stage, Totals
from rlds_beam.runners.base import RunOptions
from rlds_beam.terminal.options import PrintOptions, print_json
from rlds_beam.text import shorten

if TYPE_CHECKING:
    from rlds_beam.episodes.episode import EpisodeKey
    from rlds_beam.episodes.schema import Schema
    from rlds_beam.reading.base import Source, WorkRange

__all__ = ["CompareConfig", "Comparison", "compare"]

USAGE = "INPUT SECOND"
EXAMPLES = """
    rlds-beam compare data/point_mass/1.0.0 data/point_mass/2.0.0
    rlds-beam compare data/point_mass/1.0.0 data/point_mass/2.0.0 --json
"""
DIFFERS = 3

Digest: TypeAlias = "tuple[EpisodeKey, int]"
"""The key of a record, and the digest of its bytes."""

_SHOWN, _LISTED = 5, 1000


@dataclasses.dataclass(frozen=True)
class CompareConfig(RunOptions, PrintOptions, InputOptions):
    """Show which fields and episodes differ between two versions of a dataset."""

    input: str = option(dataclasses.MISSING, "dataset directory", positional=True)
    second: str = option(dataclasses.MISSING, "directory of the version to compare with it", positional=True)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """The differences between two versions of a dataset.

    Attributes:
      equal: the number of episodes in both versions.
      added, removed, changed: how many episodes are, and the keys of the first 1,000; those of `changed` are pairs.
      fields: the path of each field that differs, and its type in both versions; empty if it is not there.
    """

    equal: int
    added: tuple[int, list[str]]
    removed: tuple[int, list[str]]
    changed: tuple[int, list[list[str]]]
    fields: list[list[str]]

    @property
    def differs(self) -> bool:
        """Whether there is a difference."""
        return bool(self.added[0] or self.removed[0] or self.changed[0] or self.fields)

    def to_json(self) -> dict[str, Any]:
        """The differences as JSON."""
        return dataclasses.asdict(self)

    def __str__(self) -> str:
        """The text that the command prints."""
        lines = [f"episodes  {self.equal:,} equal"]
        changed = self.changed[0], [" -> ".join(pair) for pair in self.changed[1]]
        for kind, (number, keys) in (("added", self.added), ("removed", self.removed), ("changed", changed)):
            lines[0] += f", {number:,} {kind}" if number else ""
            lines += list_few(kind, keys, _SHOWN, number)
        fields = [f"{path}: {one or 'none'} -> {other or 'none'}" for path, one, other in self.fields]
        lines += list_few("field", fields, _SHOWN)
        return "\n".join([*lines, f"different (exit code {DIFFERS})" if self.differs else "equal"])


def open_sources(config: CompareConfig) -> tuple[Source, ...]:
    """Opens both datasets. Raises UsageError if one cannot be opened."""
    from rlds_beam.formats.inputs import open_input

    return tuple(
        open_input(dataclasses.replace(config, input=storage.pin(path))) for path in (config.input, config.second)
    )


@dataclasses.dataclass(frozen=True)
class DigestRecords(Stage):
    """The digests of a dataset's records; one without bytes is identified by its key."""

    name: str
    source: Source

    def ranges(self, totals: Totals) -> Iterable[WorkRange]:
        from rlds_beam.reading.plan import plan_ranges

        return plan_ranges(self.source)

    def process(self, work: WorkRange, totals: Totals) -> list[Digest]:
        import xxhash

        from rlds_beam.reading.reader import EpisodeReader

        found, reader = [], EpisodeReader(self.source)
        for episode in itertools.chain(*(reader.read(work.split, part) for part in work.segments)):
            content = episode.payload or str(episode.key).encode(errors="surrogatepass")
            found.append((episode.key, xxhash.xxh3_64_intdigest(content)))
            worker_status.count(records=1, bytes=len(episode.payload), steps=len(episode))
        return found

    def merge(self, partials: Iterable[list[Digest]]) -> list[Digest]:
        return [*itertools.chain.from_iterable(partials)]


@dataclasses.dataclass(frozen=True)
class CompareDigests(Stage):
    """Compares the digests of two datasets; `passes` are the names of the stages that made them."""

    sources: tuple[Source, ...]
    passes: tuple[str, ...]
    name = "compare"

    def finish(self, total: Any, totals: Totals) -> Comparison:
        equal, added, removed, changed = compare_contents(*(sorted(totals[name]) for name in self.passes))
        fields = [list(field) for field in find_differences(*(source.schema for source in self.sources))]
        rates = ["" if source.fps is None else f"{source.fps:g}" for source in self.sources]
        fields += [["fps", *rates]] if rates[0] != rates[1] else []
        new, gone = (len(added), added[:_LISTED]), (len(removed), removed[:_LISTED])
        return Comparison(equal, new, gone, (len(changed), changed[:_LISTED]), fields)


def compare_contents(
    first: Sequence[Digest], second: Sequence[Digest]
) -> tuple[int, list[str], list[str], list[list[str]]]:
    """Compares two versions of a dataset, each sorted by key.

    Equal records match wherever they are in a split. A record is changed if the one before it is equal in both.

    Returns:
      How many records are equal; the keys of those added, removed, and changed (before and after).
    """
    counts = [Counter((key.split, digest) for key, digest in version) for version in (first, second)]
    common = counts[0] & counts[1]
    rests: dict[tuple[str, int, int], tuple[list[str], list[str]]] = {}  # by the last equal record before them
    for side, version in enumerate((first, second)):
        seen: Counter[tuple[str, int]] = Counter()
        before: dict[str, tuple[str, int, int]] = {}
        for key, digest in version:
            if seen[key.split, digest] < common[key.split, digest]:
                seen[key.split, digest] += 1
                before[key.split] = key.split, digest, seen[key.split, digest]
            else:
                rests.setdefault(before.get(key.split, (key.split, 0, 0)), ([], []))[side].append(str(key))
    pairs = [pair for olds, news in rests.values() for pair in itertools.zip_longest(olds, news)]
    added = [new for old, new in pairs if old is None]
    removed = [old for old, new in pairs if new is None]
    return common.total(), added, removed, [[old, new] for old, new in pairs if old is not None and new is not None]


def stages(sources: Sequence[Source]) -> Job:
    """The stages of the job: a `Comparison` of two datasets."""
    passes = [DigestRecords(name, source) for name, source in zip(("first", "second"), sources, strict=True)]
    return *passes, CompareDigests(tuple(sources), tuple(each.name for each in passes))


def compare(config: CompareConfig) -> Comparison:
    """Runs the job.

    Raises:
      NotVerifiedError: an input file changed during the run.
      RldsBeamError: a dataset cannot be read at all, or the pipeline failed.
    """
    from rlds_beam.checking.rules import CheckOptions
    from rlds_beam.connectors.pipeline import ConnectorRunner
    from rlds_beam.formats.inputs import OpenedInput
    from rlds_beam.pipelines.base import run_over
    from rlds_beam.runners import check

    check(config)
    sources = open_sources(config)
    opened = [OpenedInput(source, CheckOptions(), ConnectorRunner.none()) for source in sources]
    comparison: Comparison = run_over("compare", config, opened, stages(sources))
    return comparison


def main(config: CompareConfig) -> int:
    """Runs the command: prints the differences; returns 0 if there are none, otherwise 3."""
    done = compare(config)
    if config.json:
        print_json({"differs": done.differs, **done.to_json()})
    else:
        print(done)
    return DIFFERS if done.differs else 0


def list_few(label: str, texts: Sequence[str], most: int, number: int = 0) -> list[str]:
    """A line for each of the first `most` texts, and one for how many there are besides; `number` if that is more."""
    lines = [f"{label:10}{shorten(text, 500)}" for text in texts[:most]]
    more = max(number, len(texts)) - len(lines)
    return [*lines, f"{label:10}and {more:,} more"] if more else lines


def find_differences(first: Schema, second: Schema) -> list[tuple[str, str, str]]:
    """The path of each field that differs, and its type in both schemas; empty if it is not there."""
    from rlds_beam.episodes.schema import describe_type

    found = []
    for one, other in ((first.steps, second.steps), (first.metadata, second.metadata)):
        for path in sorted({*one, *other}):
            kinds = [describe_type(fields[path]) if path in fields else "" for fields in (one, other)]
            if kinds[0] != kinds[1]:
                found.append((path, kinds[0], kinds[1]))
    return found
