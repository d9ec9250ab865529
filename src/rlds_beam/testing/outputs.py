"""The conformance tests of outputs."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlds_beam.encoding.tfds.rlds_dataset import write_dataset
from rlds_beam.episodes.episode import Episode
from rlds_beam.errors import RldsBeamError
from rlds_beam.output.base import Output
from rlds_beam.testing import make_episode, read_rejected
from rlds_beam.testing.conversions import (
    check_error,
    check_killed_and_resumed,
    check_report,
    convert_here,
    files_in,
    prepare_conversion,
)

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
