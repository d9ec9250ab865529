"""Small datasets and the results of commands on them, for the fault tests."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.testing import make_episode, read_items, read_rejected, write_dataset

STEPS = 5
EPISODES = 6


def episodes(count: int = EPISODES) -> list[Any]:
    return [make_episode(STEPS, seed=i) for i in range(count)]


def result_of(printed: str) -> dict[str, Any]:
    """The JSON that a command printed, without what differs between two runs."""
    result = json.loads(printed)
    return {name: value for name, value in result.items() if name not in ("version", "seconds")}


@dataclasses.dataclass
class Ran:
    """The result of a command: exit code, output, and where it wrote."""

    code: int
    out: str
    err: str
    output: Path

    @property
    def report(self) -> dict[str, Any]:
        return json.loads((self.output / "report.json").read_text())

    @property
    def rules(self) -> dict[str, int]:
        return {rule: count["rejected"] for rule, count in self.report["rules"].items()}

    @property
    def rejected(self) -> list[tuple[dict[str, Any], bytes]]:
        return read_rejected(self.output)

    @property
    def items(self) -> list[dict[str, Any]]:
        return read_items(self.output)

    def assert_nothing_done(self, *mentioned: str) -> None:
        """Asserts exit code 2: refused before any work, with a message that names the problem."""
        assert self.code == 2, self.err
        assert self.out == ""
        assert self.err.startswith("rlds-beam: ")
        assert len(complaints(self.err)) == 1
        for text in mentioned:
            assert text in self.err
        assert not self.output.exists()

    def assert_one_rejected(self, rule: str, *mentioned: str, field: str | None = None) -> tuple[dict[str, Any], bytes]:
        """Asserts exit code 3: one record is rejected for `rule`, and all others are written."""
        assert self.code == 3, self.err
        assert complaints(self.err) == []
        ((line, payload),) = self.rejected
        assert line["rule"] == rule
        assert rule in self.out
        if field is not None:
            assert field in [v.get("field") for v in line["violations"]]
        for text in mentioned:
            assert text in line["detail"]
        report = self.report
        assert report["records"] == report["valid"] + report["rejected"]
        assert report["rejected"] == 1
        assert report["items_written"] == len(self.items) == report["items_predicted"]
        EpisodeKey.parse(line["key"])
        return line, payload


def dataset(tmp_path: Path, records: Any = None, shards: int = 2, **kwargs: Any) -> Path:
    return write_dataset(tmp_path / "data", episodes() if records is None else records, shards=shards, **kwargs)


def complaints(err: str) -> list[str]:
    """Returns the lines of standard error, without progress, which a busy machine prints."""
    expected = re.compile(r"(\S+Z )?rlds-beam: .*, [\d:]+ (so far|left)")
    return [line for line in err.splitlines() if not expected.fullmatch(line)]


def pairs(records: int) -> int:
    return records * (STEPS - 1)
