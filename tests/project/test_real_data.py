"""25 real episodes of BridgeData, none of which ever ends: checked, repaired, converted, and read by two readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkout import REAL_DATA
from jobs import complaints

from rlds_beam.cli.main import main
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.testing import read_payloads, read_rejected, record_offsets, shard_paths

REAL = REAL_DATA / "bridge_dataset/1.0.0"
EPISODES, STEPS, PAIRS = 25, 10, 225
CAMERA = "observation/image_0"

pytestmark = pytest.mark.skipif(not REAL.is_dir(), reason="no real data; set $RLDS_BEAM_REAL_DATA to their path")


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """Runs each conversion once and returns its directory."""
    made: dict[tuple[str, ...], Path] = {}

    def convert(*flags: str) -> Path:
        if flags not in made:
            made[flags] = tmp_path_factory.mktemp("bridge") / "out"
            assert main(["convert", str(REAL), str(made[flags]), "--repair=missing_is_last", *flags]) == 0
        return made[flags]

    return convert


@pytest.fixture(scope="module")
def decoded() -> list[dict[str, np.ndarray[Any, Any]]]:
    """Every episode decoded by TFDS: step columns by path."""
    tfds = pytest.importorskip("tensorflow_datasets")
    tf = pytest.importorskip("tensorflow")
    dataset = tfds.builder_from_directory(str(REAL)).as_dataset(split="train")
    episodes = []
    for episode in dataset:
        steps = next(iter(episode["steps"].batch(1000)))
        episodes.append(by_path(tf.nest.map_structure(lambda tensor: tensor.numpy(), steps)))
    return episodes


def by_path(nest: Any, path: str = "") -> dict[str, Any]:
    """Leaves of nested dicts; tuples with one leaf per step are stacked, and empty ones are skipped."""
    if isinstance(nest, tuple) and not nest:
        return {}
    if isinstance(nest, dict):
        joined = [by_path(value, f"{path}/{name}" if path else name) for name, value in nest.items()]
        return {leaf: value for below in joined for leaf, value in below.items()}
    return {path: np.stack(nest) if isinstance(nest, tuple) else nest}


def through_agents(output: Path, **kwargs: Any) -> list[dict[str, Any]]:
    """Every item, read by TF-Agents' reader."""
    from tf_agents.utils import example_encoding_dataset

    files = [str(p) for p in shard_paths(output) if p.suffix != ".spec"]
    dataset = example_encoding_dataset.load_tfrecord_dataset(files, add_batch_dim=False, as_trajectories=True, **kwargs)
    return [by_path(element._asdict()) for element in dataset.as_numpy_iterator()]


def through_tfds(output: Path) -> list[dict[str, Any]]:
    """Every item, read by TFDS."""
    import tensorflow_datasets as tfds

    builder = tfds.builder_from_directory(str(output))
    items = [by_path(item) for item in builder.as_dataset(split="train").as_numpy_iterator()]
    assert builder.info.splits["train"].num_examples == len(items)
    return items


def test_validate_finds_them(capsys):
    assert main(["check", "--rules", str(REAL), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert (report["records"], report["valid"], report["rejected"]) == (EPISODES, 0, EPISODES)
    assert {rule: count["rejected"] for rule, count in report["rules"].items()} == {"missing_is_last": EPISODES}


def test_without_repair_nothing_is_written_and_nothing_lost(tmp_path, capsys):
    output = tmp_path / "out"
    assert main(["convert", str(REAL), str(output)]) == 3
    captured = capsys.readouterr()
    assert not complaints(captured.err)
    assert "--repair=missing_is_last" in captured.out
    manifest = json.loads((output / "manifest.json").read_text())
    assert manifest["items"] == 0
    assert shard_paths(output) == []
    assert not (output / "dataset_info.json").exists()
    rejected = read_rejected(output)
    (shard,) = shard_paths(REAL)
    assert [payload for _, payload in rejected] == read_payloads(shard)
    assert [EpisodeKey.parse(line["key"]).position for line, _ in rejected] == record_offsets(shard)[:-1]
    assert {line["rule"] for line, _ in rejected} == {"missing_is_last"}


def test_both_readers_read_every_pair(converted, decoded):
    output = converted()
    report = json.loads((output / "report.json").read_text())
    assert (report["repaired"], report["rejected"], report["items_written"]) == (EPISODES, 0, PAIRS)
    agents, tfds = through_agents(output), through_tfds(output)
    assert len(agents) == len(tfds) == PAIRS
    for a, b in zip(agents, tfds, strict=True):
        assert a.keys() == b.keys()
        for path, value in b.items():
            np.testing.assert_array_equal(a[path], value, err_msg=path)
    assert agents[0][CAMERA].shape == (2, 64, 64, 3)
    assert agents[0]["observation/state"].shape == (2, 7)
    assert agents[0]["action"].shape == (2, 7)
    for i, item in enumerate(agents):
        episode, start = decoded[i // (STEPS - 1)], i % (STEPS - 1)
        for path in (p for p in item if p.startswith(("observation/", "action")) or p == "reward"):
            np.testing.assert_array_equal(item[path], episode[path][start : start + 2], err_msg=path)
        last = start == STEPS - 2
        assert item["step_type"].tolist() == [0 if start == 0 else 1, 2 if last else 1]
        assert item["next_step_type"].tolist() == ([2, 0] if last else [1, 2 if start == STEPS - 3 else 1])
        assert item["discount"].tolist() == [1, 1]  # none of them ends in a terminal state


def test_jpeg_reads_back_compressed(converted, decoded):
    output = converted("--images=jpeg")
    agents, tfds = through_agents(output, compress_image=True), through_tfds(output)
    raw = through_agents(converted())
    assert len(agents) == len(tfds) == PAIRS
    for a, b, exact in zip(agents, tfds, raw, strict=True):
        first, second = b[f"{CAMERA}/0"], b[f"{CAMERA}/1"]
        pixels = a[CAMERA].reshape(2, 64, 64, 3)
        np.testing.assert_array_equal(pixels, np.stack([first, second]))
        np.testing.assert_array_equal(a["observation/state"], exact["observation/state"])
        assert np.abs(pixels.astype(int) - exact[CAMERA]).mean() < 4
    size = {
        kind: json.loads((out / "manifest.json").read_text())["bytes"]
        for kind, out in (("jpeg", output), ("raw", converted()))
    }
    assert size["jpeg"] < size["raw"] / 4


def test_frames_pushed_into_reverb_equal_those_that_tfds_decodes(decoded, capsys) -> None:
    """Four JPEG cameras as pixels: pushed into a table and read by Reverb's own client."""
    reverb = pytest.importorskip("reverb")
    from servers import drain

    selectors, limiter = reverb.selectors, reverb.rate_limiters.MinSize(1)
    table = reverb.Table("t", selectors.Fifo(), selectors.Fifo(), 1000, limiter, max_times_sampled=1)
    server = reverb.Server([table])
    address = f"127.0.0.1:{server.port}"
    assert main(["push", str(REAL), f"--reverb={address}", "--table=t"]) == 3  # none of them ends
    assert main(["push", str(REAL), "--repair=missing_is_last", f"--reverb={address}", "--table=t", "--dry_run"]) == 0
    out = capsys.readouterr().out
    assert main(["push", str(REAL), "--repair=missing_is_last", f"--reverb={address}", "--table=t"]) == 0
    leaves = [line.split()[0] for line in out.partition("frame\n")[2].splitlines()]
    camera = leaves.index(CAMERA)
    items = drain(address, "t")
    assert len(items) == PAIRS
    seen = {item.data[camera].tobytes() for item in items}
    expected = {steps[CAMERA][i : i + 2].tobytes() for steps in decoded for i in range(STEPS - 1)}
    assert seen == expected
    server.stop()


def test_the_preset_of_the_dataset_is_suggested_and_repairs_it(converted, tmp_path, capsys):
    assert main(["inspect", str(REAL)]) == 0
    assert "--preset=bridge_dataset" in capsys.readouterr().out
    assert main(["convert", str(REAL), str(tmp_path / "out"), "--preset=bridge_dataset"]) == 0
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["records"], report["repaired"], report["rejected"]) == (EPISODES, EPISODES, 0)
    ours, theirs = ([p.read_bytes() for p in shard_paths(out)] for out in (tmp_path / "out", converted()))
    assert ours == theirs
