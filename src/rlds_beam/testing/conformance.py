"""The conformance tests of sources, outputs, and connectors."""

from __future__ import annotations

import copy
import json
import pickle
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds_beam.connectors.base import Batch, Connector
from rlds_beam.connectors.configuration import Configuration, flat
from rlds_beam.connectors.counts import imbalance
from rlds_beam.connectors.learner.actions import as_numpy
from rlds_beam.connectors.pipeline import ConnectorRunner
from rlds_beam.encoding.base import Record
from rlds_beam.encoding.tfds.rlds_dataset import default_schema, write_dataset
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import BadEpisode, RldsBeamError, UsageError
from rlds_beam.formats.inputs import open_input
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.jobs.options import ConvertOptions
from rlds_beam.output.base import Output
from rlds_beam.reading.base import Segment, Shard, Source
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import make_episode, read_rejected
from rlds_beam.testing.conversions import (
    check_error,
    check_killed_and_resumed,
    check_report,
    convert_here,
    episode_content,
    files_in,
    plain,
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


_UNUSUAL_FIELDS: Mapping[str, Callable[[int], Any]] = {
    "info/a{}b": lambda steps: np.arange(steps, dtype=np.uint16),
    "info/größe": lambda steps: np.ones(steps, np.float64),
    "info/empty": lambda steps: np.zeros((steps, 0), np.float32),
    "info/text": lambda steps: np.array(["é\n" * i for i in range(steps)], object),
    "info/deep/cube": lambda steps: np.zeros((steps, 2, 3, 2), np.int8),
    "info/flag": lambda steps: np.zeros((steps, 1), bool),
}
"""Field -> the column of an episode of that many steps."""


class OutputTests:
    """Tests that every output passes; pytest runs those of a subclass. For example:

        class TestReturnsOutput(OutputTests):
            output = "my_outputs:ReturnsOutput"

            def read(self, directory):
                return [line for file in sorted(directory.glob("*.jsonl")) for line in file.open()]

    They check that equal plans give equal bytes, that the items do not depend on the number of ranges, that a
    conversion resumes after a kill and after the loss of a file, that rejected episodes are kept and counted, that
    unusual fields are written or refused in one line, and that `--overwrite` removes all files.

    Attributes:
      output: the value of `--to`: a name, or the class. A class must be importable by other processes.
      options: the output's options by name.
    """

    output: str | type[Output]
    options: Mapping[str, Any] = {}

    def episodes(self) -> Sequence[Episode]:
        """Valid episodes that the output can hold, at least four, the same on every call."""
        return [make_episode(3 + i % 4, seed=i, observation={"state": 3}, terminal=i % 3 > 0) for i in range(8)]

    def read(self, directory: Path) -> Any:
        """Reads the items of a finished output, in order, as a value that `==` compares; None: not compared."""
        del directory

    def _options(self, **others: Any) -> dict[str, Any]:
        return {"to": self.output, "shards": 3, **self.options, **others}

    def _data(self, directory: Path, episodes: Sequence[Episode] | None = None) -> Path:
        return write_dataset(directory / "data", self.episodes() if episodes is None else episodes, shards=3)

    def test_equal_plans_give_equal_bytes(self, tmp_path: Path) -> None:
        """Also in another process."""
        data = self._data(tmp_path)
        first, again = (prepare_conversion(data, tmp_path / name, self._options()) for name in ("first", "again"))
        assert json.dumps(first.output.plan()) == json.dumps(again.output.plan())
        check_report(first.convert_here())
        pickle.loads(pickle.dumps(again)).convert_here()
        assert files_in(tmp_path / "first") == files_in(tmp_path / "again")

    def test_any_number_of_ranges_gives_the_same_items(self, tmp_path: Path) -> None:
        """And the same counts."""
        data, results = self._data(tmp_path), []
        for shards in (1, 2, len(self.episodes())):
            report = convert_here(data, tmp_path / str(shards), self._options(shards=shards))
            check_report(report)
            assert (report.records, report.rejected) == (len(self.episodes()), 0)
            results.append((report.items_written, dict(report.left_out), self.read(tmp_path / str(shards))))
        for shards, result in zip((2, len(self.episodes())), results[1:], strict=True):
            assert result == results[0], f"{shards} ranges"

    def test_a_killed_conversion_resumes(self, tmp_path: Path) -> None:
        """A conversion that is killed at any moment, and run again, ends with the same bytes."""
        data = self._data(tmp_path)
        for seed in (1, 2):
            check_killed_and_resumed(data, tmp_path / str(seed), self._options(), seed)

    def test_a_lost_file_is_written_again(self, tmp_path: Path) -> None:
        """A file of a finished range that is missing, or cut short, when the conversion goes on."""
        data = self._data(tmp_path)
        convert_here(data, tmp_path / "whole", self._options())
        for name in ("lost", "cut"):
            job = prepare_conversion(data, tmp_path / name, self._options())
            for work in job.open():
                job.converter.convert_range(work, {})
            for file in job.output.files(job.ranges[1]):
                path = tmp_path / name / file
                content = path.read_bytes()
                path.unlink()
                if name == "cut":
                    path.write_bytes(content[: len(content) // 2])
            check_report(convert_here(data, tmp_path / name, self._options()))
            assert files_in(tmp_path / name) == files_in(tmp_path / "whole"), name

    def test_rejected_episodes_are_kept_and_counted(self, tmp_path: Path) -> None:
        """An episode without an end, and one of a single step, which an output may reject."""
        episodes = list(self.episodes())
        endless = episodes[0].replace(steps={**episodes[0].steps, "is_last": np.zeros(len(episodes[0]), bool)})
        flags = {"is_first": np.ones(1, bool), "is_last": np.ones(1, bool)}
        single = episodes[1].replace(
            steps={**{path: column[:1] for path, column in episodes[1].steps.items()}, **flags}
        )
        data = self._data(tmp_path, [*episodes[:2], endless, single, *episodes[2:]])
        report = convert_here(data, tmp_path / "out", self._options())
        check_report(report)
        rejected = [line["rule"] for line, _ in read_rejected(tmp_path / "out")]
        assert len(rejected) == report.rejected <= 2, rejected
        assert "missing_is_last" in rejected

    def test_unusual_fields_are_written_or_refused(self, tmp_path: Path) -> None:
        """Names, dtypes, and shapes that an output may not expect; it refuses them in one line."""
        for i, (field, column) in enumerate(_UNUSUAL_FIELDS.items()):
            episodes = [episode.with_columns({field: column(len(episode))}) for episode in self.episodes()]
            data = self._data(tmp_path / str(i), episodes)
            try:
                check_report(convert_here(data, tmp_path / str(i) / "out", self._options()))
            except RldsBeamError as error:
                check_error(error)

    def test_overwrite_removes_all_files(self, tmp_path: Path) -> None:
        """The output names all files that it writes, so that another one can replace them."""
        data, other = self._data(tmp_path), "numpy" if self.output == "rlds" else "rlds"
        convert_here(data, tmp_path / "clean", {"to": other})
        convert_here(data, tmp_path / "out", self._options())
        prepare_conversion(data, tmp_path / "out", {"to": other, "overwrite": True}).convert_here()
        assert files_in(tmp_path / "out").keys() == files_in(tmp_path / "clean").keys()


_LENGTHS = (2, 20, 3, 11, 7, 5, 16, 9)


class ConnectorTests:
    """Tests that every connector passes; pytest runs those of a subclass. For example:

        class TestClipReward(ConnectorTests):
            def connectors(self):
                return [pieces.ClipReward(0.5)]

    They check that the dry run on zeros predicts the fields of every episode, also of the shortest, that equal episodes
    give equal results, that episodes are not changed in place, and that the counts add up.
    """

    def connectors(self) -> Sequence[Connector]:
        """The connector, after those that it needs before it."""
        raise NotImplementedError(f"{type(self).__name__}.connectors")

    def episode(self, steps: int, seed: int) -> Episode:
        """A valid episode that the connectors can process; each with the same fields."""
        return make_episode(steps, seed=seed, observation={"state": 3}, terminal=seed % 2 == 0)

    def _episodes(self) -> list[Episode]:
        return [self.episode(steps, seed) for seed, steps in enumerate(_LENGTHS)]

    def _runner(self) -> ConnectorRunner:
        """The connectors, fitted to the episodes."""
        episodes = self._episodes()
        runner = ConnectorRunner.from_configuration(Configuration(flat(self.connectors())), default_schema(episodes[0]))
        while runner.unfitted:
            accumulator = runner.accumulator()
            for episode in episodes:
                runner.accumulate(accumulator, [episode])
            runner = runner.fit([json.loads(json.dumps(accumulator.finish()))])
        return runner

    def test_the_dry_run_predicts_the_fields_of_every_episode(self) -> None:
        """`connect` raises if fields, dtypes, or shapes differ from those of the dry run on zeros."""
        runner = self._runner()
        for episode in self._episodes():
            runner.connect([episode])

    def test_the_shortest_episodes(self) -> None:
        """One transition, and a single step without one; both may be dropped or rejected."""
        runner = self._runner()
        for steps in (2, 1):
            try:
                runner.connect([self.episode(steps, seed=0)])
            except BadEpisode:
                continue

    def test_equal_episodes_give_equal_results(self) -> None:
        """In any order, and in another process."""
        runner, episodes = self._runner(), self._episodes()
        again = pickle.loads(pickle.dumps(runner))
        backwards = [batch_content(again.connect([episode])) for episode in reversed(copy.deepcopy(episodes))]
        assert [batch_content(runner.connect([episode])) for episode in episodes] == backwards[::-1]

    def test_episodes_are_not_changed_in_place(self) -> None:
        """Later connectors and outputs read the same arrays."""
        runner, episodes = self._runner(), self._episodes()
        before = [episode_content(episode) for episode in episodes]
        for episode in episodes:
            runner.connect([episode])
        assert [episode_content(episode) for episode in episodes] == before

    def test_the_counts_add_up(self) -> None:
        """Each connector gets what the one before returned, and drops what it does not return."""
        for episode in self._episodes():
            batch = self._runner().connect([episode])
            assert imbalance(1, len(episode), batch.connected) is None
            assert batch.connected[-1].episodes_out == len(batch.episodes)

    def test_each_episode_ends_once(self) -> None:
        """The first step is `is_first`, and the last one `is_last`; no other step is, or is terminal."""
        runner = self._runner()
        for made in (made for episode in self._episodes() for made in runner.connect([episode]).episodes):
            first, last, terminal = (np.asarray(made.steps[name]) for name in ("is_first", "is_last", "is_terminal"))
            end = len(made) - 1 - ("loss_mask" in made.steps)  # AddOneTsToEpisodesAndTruncate adds a step
            assert np.flatnonzero(first).tolist() == [0]
            assert np.flatnonzero(last).tolist() == [end]
            assert {*np.flatnonzero(terminal).tolist()} <= {end}

    def test_its_plan_is_json(self) -> None:
        """A job that resumes compares names, arguments, and versions of the code."""
        plan = Configuration(flat(self.connectors())).plan()
        assert json.dumps(plan) == json.dumps(Configuration(flat(self.connectors())).plan())


def batch_content(batch: Batch) -> dict[str, Any]:
    """The episodes and columns of a batch as values that `==` compares; NaN equals NaN."""
    return {
        "dropped": dict(batch.dropped),
        "episodes": [episode_content(episode) for episode in batch.episodes],
        "columns": [_columns(columns) for columns in batch.columns],
        "modules": {module: _columns(columns) for module, columns in (batch.modules or {}).items()},
    }


def _columns(columns: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(name, plain(c if isinstance(c, EncodedImages) else as_numpy(c))) for name, c in columns.items()]
