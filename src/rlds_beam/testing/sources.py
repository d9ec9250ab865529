"""The conformance tests of sources."""

from __future__ import annotations

import json
import pickle
import random
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlds_beam.encoding.base import Record
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.inputs import open_input
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.reading.base import Segment, Shard, Source
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing.conversions import (
    check_error,
    check_killed_and_resumed,
    check_report,
    convert_here,
    episode_content,
    files_in,
    prepare_conversion,
)

_MAX_CUTS = 300
"""The split points to try in each shard."""
_MAX_FILES = 6
"""The files of a dataset to cut short, each in a copy."""


class SourceTests:
    """Tests that every source passes; pytest runs those of a subclass. For example:

        class TestJsonSource(SourceTests):
            source = "my_formats:JsonSource"

            def write(self, directory):
                shutil.copytree("tests/robot", directory)

    They check that every split point of a file and every number of ranges gives each record exactly once, that a
    conversion gives equal bytes for any number of ranges and after a kill, and that a file that is cut short gives an
    error of one line or rejected episodes.

    Attributes:
      source: the value of `--from`: a name, or the class. A class must be importable by other processes.
      options: the source's options by name.
    """

    source: str | type[Source]
    options: Mapping[str, Any] = {}

    def write(self, directory: Path) -> str | Path | None:
        """Writes a dataset of valid episodes, the same on every call, into a directory that does not exist.

        Returns:
          The input for `rlds_beam.convert`; None: the directory.
        """
        raise NotImplementedError(f"{type(self).__name__}.write")

    def _write_dataset(self, directory: Path) -> str:
        given = self.write(directory)
        return str(directory if given is None else given)

    def _options(self, **others: Any) -> dict[str, Any]:
        return {"from_": self.source, "to": "rlds", **self.options, **others}

    def _open_source(self, input: str) -> Source:
        return open_input(ConvertOptions.create(input, "unused", **self._options()))

    def test_every_episode_is_read_as_its_schema_says(self, tmp_path: Path) -> None:
        """Two openings give the same plan and episodes, also in another process."""
        data = self._write_dataset(tmp_path / "data")
        source, again = self._open_source(data), self._open_source(data)
        episodes = _read(source)
        assert episodes, "write an episode"
        assert [episode["faults"] for episode in episodes if episode["faults"]] == []
        assert len({episode["key"] for episode in episodes}) == len(episodes), "two episodes have the same key"
        assert source.episodes in (None, len(episodes)), "the metadata has another number of episodes"
        assert json.loads(json.dumps(source.plan())) == json.loads(json.dumps(again.plan()))
        assert pickle.loads(pickle.dumps(source.schema)) == again.schema == source.schema
        assert _read(again, pickle.loads(pickle.dumps(EpisodeReader(again)))) == episodes

    def test_every_split_point_gives_each_record_once(self, tmp_path: Path) -> None:
        """Also `scan`, `end`, and `positions` of the record format agree with `read`."""
        source = self._open_source(self._write_dataset(tmp_path / "data"))
        for shard in (shard for split in source.splits for shard in split.shards):
            files, path = source.files, shard.path
            whole = [*files.read(path)]
            records = [record for record in whole if isinstance(record, Record)]
            headers = files.scan(path)
            assert headers.positions.tolist() == [record.position for record in records], path
            same: dict[bytes, Any] = {}
            for record, *header in zip(records, headers.lengths, headers.payload_crcs, strict=True):
                assert same.setdefault(record.payload, header) == header, "equal records have equal headers"
            if not files.is_splittable(path):
                continue
            for cut in _cuts(source, shard, [record.position for record in records]):
                assert [*files.read(path, 0, cut), *files.read(path, cut, None)] == whole, f"{path}, cut at {cut}"
            for low in range(len(records)):
                start, stop = files.positions(path, low, low + 1)
                assert [*files.read(path, start, stop)] == records[low : low + 1], f"{path}, record {low}"

    def test_any_number_of_ranges_gives_the_same_episodes(self, tmp_path: Path) -> None:
        """Also in the RLDS dataset that they are converted to, whose bytes are the same on every run."""
        data = self._write_dataset(tmp_path / "data")
        source = self._open_source(data)
        episodes, written = _read(source), list[list[bytes]]()
        for shards in (None, 1, 2, 3, len(episodes)):
            try:
                assert _read(source, shards=shards) == episodes, shards
                report = convert_here(data, tmp_path / str(shards), self._options(shards=shards))
            except UsageError:  # a file that cannot be split
                assert shards not in (None, 1) or len(source.splits[0].shards) > 1
                continue
            check_report(report)
            assert report.valid + report.repaired + report.rejected == len(episodes)
            written.append([path.read_bytes() for path in sorted((tmp_path / str(shards)).glob("*.tfrecord-*"))])
        assert len({b"".join(shards) for shards in written}) == 1, "the records depend on the number of ranges"
        convert_here(data, tmp_path / "again", self._options())
        assert files_in(tmp_path / "again") == files_in(tmp_path / "None")

    def test_a_killed_conversion_resumes(self, tmp_path: Path) -> None:
        """A conversion that is killed at any moment, and run again, ends with the same bytes."""
        data = self._write_dataset(tmp_path / "data")
        shards = next(n for n in (3, 2, None) if self._can_be_cut(data, tmp_path, n))
        check_killed_and_resumed(data, tmp_path, self._options(shards=shards), seed=1)

    def _can_be_cut(self, data: str, directory: Path, shards: int | None) -> bool:
        try:
            prepare_conversion(data, directory / "unused", self._options(shards=shards))
        except UsageError:
            return shards is None
        return True

    def test_a_file_that_is_cut_short_is_refused_or_rejected(self, tmp_path: Path) -> None:
        """It gives an error of one line that names it, or rejected episodes; other files are still read."""
        whole = self._open_source(self._write_dataset(tmp_path / "data"))
        files = sorted(path.relative_to(tmp_path / "data") for path in tmp_path.rglob("*") if path.is_file())
        rng = random.Random(f"{self.source}")
        for file in rng.sample(files, min(len(files), _MAX_FILES)):
            directory = tmp_path / f"cut-{file.name}"  # caches know files by their paths
            data = self._write_dataset(directory / "data")
            damaged = directory / "data" / file
            content = damaged.read_bytes()
            if not content:
                continue
            damaged.write_bytes(content[: rng.randrange(len(content))])
            try:
                report = convert_here(data, directory / "out", self._options())
            except RldsBeamError as error:
                check_error(error, damaged)
            else:
                check_report(report)
                if any(Path(shard.path).name == file.name for _, shard in _shards(whole)):
                    assert _other_shards(self._open_source(data), file) == _other_shards(whole, file), damaged
            shutil.rmtree(directory)


def _shards(source: Source) -> list[tuple[str, Shard]]:
    return [(split.name, shard) for split in source.splits for shard in split.shards]


def _read(source: Source, reader: EpisodeReader | None = None, shards: int | None = None) -> list[dict[str, Any]]:
    reader, works = reader or EpisodeReader(source), plan_ranges(source, shards)
    return [episode_content(e) for work in works for segment in work.segments for e in reader.read(work.split, segment)]


def _other_shards(source: Source, file: Path) -> list[dict[str, Any]]:
    """The episodes of all shards but one, without their keys."""
    reader = EpisodeReader(source)
    segments = [(split, Segment(shard)) for split, shard in _shards(source) if Path(shard.path).name != file.name]
    found = [episode_content(episode) for split, segment in segments for episode in reader.read(split, segment)]
    return [{name: value for name, value in content.items() if name != "key"} for content in found]


def _cuts(source: Source, shard: Shard, positions: Sequence[int]) -> list[int]:
    """Split points of a shard: all, or, of many, those at records and some between them."""
    end = source.files.end(shard.path, shard.size)
    if end <= _MAX_CUTS:
        return [*range(end + 1)]
    others = random.Random(0).sample(range(end), max(0, _MAX_CUTS - 3 * len(positions)))
    return sorted({0, end, *others, *(at + step for at in positions[:_MAX_CUTS] for step in (0, 1))})
