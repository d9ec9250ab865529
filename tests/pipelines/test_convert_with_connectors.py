"""`--connectors` in `convert`, `push`, and `inspect`: the output is what the connectors return."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from own_connectors import SubtractMeanReward, broken, changing

import rlds_beam
from rlds_beam.connectors import MinimumLength, SplitAgents, SubsampleSteps
from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.pipelines.stats import StatsConfig, stats
from rlds_beam.testing import make_episode, read_items, write_dataset

LENGTHS = (5, 12, 3, 20, 8, 30)
SHORT = """
- own_connectors:ClipReward: {limit: 0.5}
- MinimumLength: {transitions: 7}
"""


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> str:
    episodes = [make_episode(length, seed=length) for length in LENGTHS]
    path = tmp_path_factory.mktemp("data")
    return str(write_dataset(path, [*episodes, make_episode("F M M")], name="toy", shards=3))


def rewards(output: Path) -> list[np.ndarray[Any, Any]]:
    return [item["reward"] for item in read_items(output)]


def expected(length: int) -> np.ndarray[Any, Any]:
    return make_episode(length, seed=length).steps["reward"]


def test_records_read_are_written_rejected_or_dropped(data, tmp_path, monkeypatch):
    (tmp_path / "short.yaml").write_text(SHORT)
    done = rlds_beam.convert(data, tmp_path / "out", connectors=tmp_path / "short.yaml", items="episodes")
    report = done.report
    dropped = {name: (found.records, found.episodes) for name, found in report.dropped.items()}
    assert dropped == {"MinimumLength": (2, 2)}
    assert (report.records, report.rejected, report.items_written) == (7, 1, 4)
    assert "dropped   2 records by MinimumLength" in report.summary()
    assert "2 dropped by MinimumLength" in report.line()
    assert json.loads((tmp_path / "out/report.json").read_text())["dropped"]["MinimumLength"]["records"] == 2
    by_length = {len(reward): reward for reward in rewards(tmp_path / "out")}
    assert sorted(by_length) == [8, 12, 20, 30]
    for length, found in by_length.items():
        np.testing.assert_array_equal(found[:-1], expected(length)[:-1].clip(-0.5, 0.5))


def test_the_connectors_are_part_of_the_plan(data, tmp_path):
    for limit in (0.5, 0.5, 0.25):
        (tmp_path / "clip.json").write_text(json.dumps([{"own_connectors:ClipReward": {"limit": limit}}]))
        if limit == 0.5:
            rlds_beam.convert(data, tmp_path / "out", connectors=tmp_path / "clip.json")
        else:
            with pytest.raises(UsageError, match=r"connectors\.0\.arguments\.limit was 0\.5 and is now 0\.25"):
                rlds_beam.convert(data, tmp_path / "out", connectors=tmp_path / "clip.json")


def test_a_connector_is_fitted_to_the_whole_dataset_and_a_second_run_does_not_fit_it_again(data, tmp_path):
    pieces = [MinimumLength(7), SubtractMeanReward(), SubtractMeanReward()]
    outputs = [tmp_path / "one", tmp_path / "two"]
    for output, workers in zip(outputs, (1, 2), strict=True):
        rlds_beam.convert(data, output, connectors=pieces, items="episodes", workers=workers, shards=3)
    kept = [length for length in LENGTHS if length >= 8]
    mean = np.concatenate([expected(length) for length in kept]).mean(dtype=np.float64)
    results = json.loads((outputs[0] / "fitted.json").read_text())["results"]
    assert [result["mean"] for result in results] == pytest.approx([mean, 0.0], abs=1e-7)
    found = np.concatenate([reward[:-1] for reward in sorted(rewards(outputs[0]), key=len)])
    wanted = np.concatenate([expected(length)[:-1] for length in sorted(kept)])
    np.testing.assert_allclose(found, wanted - mean, atol=1e-6)
    names = sorted(path.name for path in outputs[0].iterdir() if path.is_file())
    assert all((outputs[0] / name).read_bytes() == (outputs[1] / name).read_bytes() for name in names)
    # Killed before the end: the remaining ranges use the statistics of the first run.
    (outputs[0] / "manifest.json").unlink()
    next((outputs[0] / "_commits").iterdir()).unlink()
    fitted = json.loads((outputs[0] / "fitted.json").read_text())
    fitted["results"][0]["mean"] += 1.0
    (outputs[0] / "fitted.json").write_text(json.dumps(fitted))
    rlds_beam.convert(data, outputs[0], connectors=pieces, items="episodes", workers=1, shards=3)
    assert sum(abs(reward).mean() > 0.99 for reward in rewards(outputs[0])) >= 1


def test_agents_of_one_record_are_separate_items(tmp_path):
    steps = make_episode(6, observation={"left": 2, "right": 2}, action={"left": 1, "right": 1})
    own = write_dataset(tmp_path, [steps], name="two")
    split = {a: {"observation": f"observation/{a}", "action": f"action/{a}"} for a in ("left", "right")}
    done = rlds_beam.convert(own, tmp_path / "out", connectors=[SplitAgents(split)], items="pairs")
    assert done.report.items_written == 10
    np.testing.assert_array_equal(
        read_items(tmp_path / "out")[5]["observation"][0], steps.steps["observation/right"][0]
    )


@pytest.mark.parametrize(
    ("connector", "message"),
    [
        (broken, r"--connectors: own_connectors:broken raised KeyError: 'no such thing' \(.*own_connectors.py, line"),
        (
            changing,
            r"changing returned reward as float64 \(\) for toy/1.0.0:train:.*, but as float32 \(\) in the "
            "dry run on zeros. Every episode must have the same fields, dtypes, and shapes.",
        ),
        (
            [MinimumLength(2), changing, SubsampleSteps(1)],
            "--connectors: own_connectors:changing returned reward as float64",
        ),
    ],
)
def test_a_connector_at_fault_is_named_with_the_episode(data, tmp_path, connector, message):
    with pytest.raises(RldsBeamError, match=message) as caught:
        rlds_beam.convert(data, tmp_path / "out", connectors=connector)
    assert "toy/1.0.0:train:" in str(caught.value)


def test_push(data, tmp_path):
    reverb = pytest.importorskip("reverb")
    table = reverb.Table("t", reverb.selectors.Fifo(), reverb.selectors.Fifo(), 1000, reverb.rate_limiters.MinSize(1))
    server = reverb.Server([table])
    try:
        for _ in range(2):  # the second writes nothing new
            done = rlds_beam.push(
                data,
                reverb=f"localhost:{server.port}",
                table="t",
                items="episodes",
                connectors=[MinimumLength(7), SubtractMeanReward()],
            )
        assert done.report.items_written == 4
        assert done.report.dropped["MinimumLength"].records == 2
        assert reverb.Client(f"localhost:{server.port}").server_info(timeout=60)["t"].current_size == 4
    finally:
        server.stop()


COLUMNS = """
- AddObservationsFromEpisodesToBatch
- AddColumnsFromEpisodesToTrainBatch
- AddTimeDimToBatchAndZeroPad: {max_seq_len: 4}
- AddStatesFromEpisodesToBatch: {initial_state: {h: [0.0, 0.0]}}
- BatchIndividualItems
"""


def test_push_columns(tmp_path):
    """Each sequence is an item with its state; sampled items equal what the connectors return."""
    reverb = pytest.importorskip("reverb")
    states = {"state_out/h": np.arange(14, dtype=np.float32).reshape(7, 2)}
    own = write_dataset(tmp_path, [make_episode(7, columns=states)], name="recurrent")
    (tmp_path / "columns.yaml").write_text(COLUMNS)
    server = reverb.Server([reverb.Table.queue("t", 1000)])  # the order is kept, and each item is sampled once
    try:
        address = f"localhost:{server.port}"
        for _ in range(2):  # the second writes nothing new
            done = rlds_beam.push(
                own, reverb=address, table="t", columns=True, allow_blocking=True, connectors=tmp_path / "columns.yaml"
            )
        assert done.report.items_written == 2  # 6 transitions in sequences of 4
        client = reverb.Client(address)
        assert client.server_info(timeout=60)["t"].current_size == 2
        first, second = (sample.data for sample in client.sample("t", 2, emit_timesteps=False))
    finally:
        server.stop()
    source = rlds_beam.connectors.configuration.load(str(tmp_path / "columns.yaml"))
    columns = rlds_beam.connect(source.connectors, [make_episode(7, columns=states)]).modules["default_policy"]
    names = sorted(columns, key=lambda name: name.split("/"))
    for sample, row in ((first, 0), (second, 1)):
        for name, value in zip(names, sample, strict=True):
            np.testing.assert_array_equal(value, columns[name][row], err_msg=name)


def test_actions_are_normalized_by_the_dataset_or_by_a_file_of_stats(data, tmp_path):
    """Statistics are fitted to the output of earlier connectors; those from a file are known before reading."""
    piece = {"fields": ["action"], "mode": "normal"}
    (tmp_path / "own.json").write_text(json.dumps([{"MinimumLength": {"transitions": 7}}, {"Normalize": piece}]))
    rlds_beam.convert(data, tmp_path / "own", connectors=tmp_path / "own.json", items="episodes", shards=3)
    kept = [make_episode(length, seed=length).steps["action"] for length in LENGTHS if length >= 8]
    every = np.concatenate([action[:-1] for action in kept]).astype(np.float64)
    written = {len(item["action"]): item["action"] for item in read_items(tmp_path / "own")}
    for action in kept:
        scaled = (action - every.mean(axis=0)) / every.std(axis=0)
        np.testing.assert_allclose(written[len(action)], scaled, rtol=1e-4, atol=1e-5)
    assert json.loads((tmp_path / "own/fitted.json").read_text())["results"]

    stats(StatsConfig(data, output=str(tmp_path / "stats.json"), max_rejected=1.0))
    (tmp_path / "file.json").write_text(
        json.dumps([{"Normalize": {**piece, "statistics": str(tmp_path / "stats.json")}}])
    )
    rlds_beam.convert(data, tmp_path / "file", connectors=tmp_path / "file.json", items="episodes", shards=3)
    assert not (tmp_path / "file/fitted.json").exists()
    every = np.concatenate([make_episode(length, seed=length).steps["action"][:-1] for length in LENGTHS])
    longest = max(read_items(tmp_path / "file"), key=lambda item: len(item["action"]))["action"]
    expected_action = (make_episode(30, seed=30).steps["action"] - every.mean(axis=0)) / every.std(axis=0)
    np.testing.assert_allclose(longest, expected_action, rtol=1e-4, atol=1e-5)


def test_columns_that_would_not_be_written_are_refused(data, tmp_path):
    (tmp_path / "columns.yaml").write_text(COLUMNS)
    with pytest.raises(UsageError, match=r"connectors add actions, .* Use --to=columns"):
        rlds_beam.convert(data, tmp_path / "out", connectors=tmp_path / "columns.yaml")
    with pytest.raises(UsageError, match="Use --columns"):
        rlds_beam.push(data, reverb="localhost:1", table="t", connectors=tmp_path / "columns.yaml")
