"""`rlds-beam check`: measures signals, lists the worst episodes, and writes the list that `--exclude` reads."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

import rlds_beam
from rlds_beam.checking.signals.base import SIGNALS, signal
from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.testing import make_episode, read_items, write_dataset

HOSTILE = b"\x1b[2J\x1b]0;title\x07<script> \xe2\x80\xae" + bytes(range(97, 123)) * 4000
JUMP, IDLE = 7, 11
"""The episodes with a fault."""


def smooth(seed: int, flags: str = "") -> Any:
    """An episode of 40 steps (or with these flags) whose action and state move smoothly."""
    length = len(flags.split()) or 40
    rng = np.random.default_rng(seed)
    state = np.cumsum(rng.normal(0, 0.01, (length, 3)), axis=0).astype(np.float32)
    action = np.diff(state, axis=0, append=state[-1:]).astype(np.float32)
    text = np.array([b"open the drawer"] * length, object)
    columns = {"action": action, "observation/state": state, "language_instruction": text}
    return make_episode(flags or length, seed=seed, observation={"state": 3}, columns=columns)


def records() -> list[Any]:
    good = [smooth(seed) for seed in range(24)]
    state = np.array(good[JUMP].steps["observation/state"])
    state[20:] += 5.0
    good[JUMP] = good[JUMP].with_columns(
        {"observation/state": state, "language_instruction": np.array([HOSTILE] * 40, object)}
    )
    rest = {name: np.repeat(good[IDLE].steps[name][:1], 40, axis=0) for name in ("action", "observation/state")}
    good[IDLE] = good[IDLE].with_columns(rest)
    return [*good, smooth(99, "F M M")]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    return str(write_dataset(tmp_path_factory.mktemp("data"), records(), name="toy", shards=3))


@pytest.fixture(scope="module")
def done(data, tmp_path_factory):
    return rlds_beam.check(data, output=tmp_path_factory.mktemp("out") / "signals.parquet")


def key_of(table: Any, worst: str) -> str:
    values = [float("-inf") if v is None else v for v in table[worst].to_pylist()]
    return str(table["key"][int(np.argmax(values))])


def test_each_record_is_a_row_and_the_faults_are_found(data, done):
    table = done.table
    assert table.num_rows == done.rows == done.report.records == 25
    assert table["key"].to_pylist() == sorted(table["key"].to_pylist(), key=rlds_beam.EpisodeKey.parse)
    assert [rule for rule in table["rule"].to_pylist() if rule] == ["missing_is_last"]
    jump = done.signals["jump"]
    assert jump["beyond"] >= 1 and jump["worst"][0]["key"] == key_of(table, "jump")
    assert (jump["worst"][0]["field"], jump["worst"][0]["step"]) == ("observation/state", 20)
    idle = done.signals["idle_share"]
    assert (idle["beyond"], idle["worst"][0]["key"]) == (1, key_of(table, "idle_share"))
    assert list(done.signals) == list(SIGNALS)
    assert repr(done).startswith("<CheckOutcome: 25 records read, 24 valid, 1 rejected (1 missing_is_last); beyond")
    assert table["steps"].to_pylist().count(40) == 24


def test_same_bytes_for_any_number_of_workers(data, done, tmp_path):
    flags = ["--reject=jump > 10, steps < 5", "--max_rejected=1", "--json"]
    texts = []
    for workers in (1, 2):
        name = str(tmp_path / str(workers))
        files = [f"--output={name}.parquet", f"--write_exclude={name}.txt", f"--workers={workers}"]
        assert main(["check", data, *flags, *files]) == 0
        texts.append([Path(f"{name}.parquet").read_bytes(), Path(f"{name}.txt").read_bytes()])
    assert texts[0] == texts[1]
    assert texts[0][0] == Path(done.path).read_bytes()
    assert len([*tmp_path.iterdir()]) == 4  # the files of ranges are gone


def test_each_worker_measures_the_signals_of_a_program(data):
    def steps_above_zero(episodes: Any) -> Any:
        """Steps in which an action is above zero."""
        return {path: episodes.share((one.values > 0).any(axis=0)) for path, one in episodes.motions.items()}

    signal("Motion", "share of steps", 0.5)(steps_above_zero)
    try:
        tables = [rlds_beam.check(data, workers=workers).table for workers in (1, 2)]
    finally:
        del SIGNALS["steps_above_zero"]
    assert tables[0]["steps_above_zero"].null_count < 25
    assert tables[0].equals(tables[1])


def test_workers_on_other_machines_need_an_output(data):
    with pytest.raises(UsageError, match="add --output=FILE"):
        rlds_beam.check(data, runner="apache_beam.runners.portability.fn_api_runner:FnApiRunner")


def test_the_list_it_writes_is_what_exclude_reads(data, done, tmp_path, capsys):
    file, out = tmp_path / "exclude.txt", tmp_path / "out"
    assert main(["check", data, "--reject=jump > 10, idle_share > 0.9", f"--write_exclude={file}"]) == 3
    printed = capsys.readouterr().out
    chosen = int(re.search(r"chosen    (\d+) of 25 episodes", printed)[1])  # type: ignore[index]
    command = f"rlds-beam convert {data} OUTPUT --exclude={file}"
    assert f"use       {command}\n" in printed and chosen >= 2
    lines = file.read_text().splitlines()
    assert lines[0] == "# jump > 10, idle_share > 0.9" and len(lines) == chosen + 1
    arguments = command.replace("OUTPUT", str(out)).split()[1:]
    assert main([*arguments, "--items=episodes", "--max_rejected=1"]) == 0
    assert len(list(read_items(out))) == 24 - chosen
    assert "not found" not in capsys.readouterr().out
    again = rlds_beam.check(data, exclude=file)
    assert again.rows == 25 - chosen and again.signals["idle_share"]["beyond"] == 0


def test_findings_about_the_dataset_are_counted_and_in_json(tmp_path, capsys):
    metadata = {f"field{i}": HOSTILE for i in range(20)}
    episodes = [smooth(seed).replace(metadata=metadata) for seed in range(12)]
    path = str(write_dataset(tmp_path, episodes, name="toy"))
    assert main(["check", path]) == 0
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if line.startswith("constant_metadata")]
    assert line.split()[:4] == ["constant_metadata", "episode_metadata/field0", "and", "19"] and len(line) < 160
    assert all(c.isprintable() or c == "\n" for c in printed)
    assert main(["check", path, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert len([one for one in found if one["check"] == "constant_metadata"]) == 20
    assert set(found[0]) == {"check", "field", "detail", "remedy"}
    outcome = rlds_beam.check(path)
    assert "constant_metadata" in str(outcome) and outcome.findings[-1].field == "episode_metadata/field9"


def test_the_function_keeps_the_table_without_a_file(data):
    outcome = rlds_beam.check(data, split="train[:6]", decode=0)
    path = Path(outcome.path)
    assert outcome.table.num_rows == outcome.rows == 6 and path.exists()
    assert "within    " in str(outcome)
    assert all(one in pq.read_schema(path).names for one in ("jump", "jump@step", "idle_share"))
    del outcome
    assert not path.exists()


def test_reject_rejects_by_signals_of_one_episode(data, tmp_path, capsys):
    report = rlds_beam.convert(data, tmp_path / "out", reject="idle_share > 0.9, steps < 2", items="episodes").report
    assert (report.records, report.rejected, report.items_written) == (25, 2, 23)
    sample = report.rules["signal_limit"].samples[0]
    detail = sample.detail
    assert detail == "idle_share is 0.975 (rejected by idle_share > 0.9)" and ":train:" in sample.key
    (line,) = [json.loads(x) for x in rejected_lines(tmp_path / "out") if "signal_limit" in x]
    assert (line["violations"][0]["step"], line["rule"]) == (1, "signal_limit")
    assert main(["convert", data, str(tmp_path / "out"), "--items=episodes", "--reject=steps < 2"]) == 2
    assert "check.reject was" in capsys.readouterr().err
    with pytest.raises(UsageError, match="--rules measures no signals: leave out --reject"):
        rlds_beam.check(data, reject="steps > 3", rules=True)
    assert not rlds_beam.check(data, repair="missing_is_last", rules=True).signals
    with pytest.raises(rlds_beam.FailedRuleError, match="--fail=signal_limit"):
        rlds_beam.stats(data, reject="steps > 3", fail="signal_limit")
    with pytest.raises(UsageError, match=r"jump compares an episode with the whole dataset.*--write_exclude=FILE"):
        rlds_beam.stats(data, reject="jump > 3")


def rejected_lines(output: Path) -> list[str]:
    return [line for file in (output / "rejected").rglob("*.jsonl") for line in file.read_text().splitlines()]


def test_repeated_episodes_are_named_with_their_splits_for_any_number_of_workers(tmp_path, capsys):
    episodes = [smooth(seed) for seed in range(20)]
    data = write_dataset(tmp_path, episodes, name="arms", shards=2)
    write_dataset(tmp_path, episodes[:6], name="arms", split="val")
    reports = []
    for n in (1, 2):
        flags = ["--json", f"--workers={n}", f"--output={tmp_path}/{n}.parquet", "--accept=duplicate_episode"]
        assert main(["check", str(data), *flags]) == 0
        reports.append(json.loads(capsys.readouterr().out))
    assert (tmp_path / "1.parquet").read_bytes() == (tmp_path / "2.parquet").read_bytes()
    assert reports[0]["findings"] == reports[1]["findings"] and reports[0]["signals"] == reports[1]["signals"]
    worst = {one["key"]: one["field"] for one in reports[0]["signals"]["duplicate_actions"]["worst"] if one["value"]}
    assert len(worst) == 12 and {key.split(":")[1] for key in worst} == {"train", "val"}
    assert all(key.split(":")[1] != other.split(":")[1] for key, other in worst.items())
    assert main(["check", str(data), "--signal=duplicate_actions", "--accept=duplicate_episode"]) == 0
    assert re.search(r"1  arms/1.0.0:train:\S+\s+arms/1.0.0:val:00000@0", capsys.readouterr().out)
