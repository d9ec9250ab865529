"""Steps in no item are counted, and an input without any item is an error."""

from __future__ import annotations

import contextlib
import itertools
import json
import random

import numpy as np
import pytest
from exchanging import export

from rlds_beam.cli.main import main
from rlds_beam.encoding.tfds.rlds_dataset import default_schema
from rlds_beam.formats.registry import OUTPUTS
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.trajectories.items import PAD, Coverage, item_count, windows
from rlds_beam.trajectories.options import ItemOptions


def options(length, stride, pad, tile, **more):
    return ItemOptions(
        items="sequences",
        sequence_length=length,
        stride_length=stride,
        pad_end_of_episodes=pad,
        tile_end_of_episodes=tile,
        **more,
    )


def total(coverage):
    return tuple(sum(getattr(u, name) for u in coverage.unused.values()) for name in ("episodes", "steps"))


@pytest.mark.parametrize(("pad", "tile"), [(False, False), (True, False), (True, True)])
def test_unused_steps_are_those_outside_all_windows(pad, tile):
    for length, stride, steps, added in itertools.product(range(1, 6), range(1, 8), range(1, 14), range(2)):
        chosen = options(length, stride, pad, tile)
        coverage = Coverage(chosen)
        coverage.add(steps, steps + added)
        coverage.finish()
        used = {*windows(steps + added, chosen).ravel().tolist()} - {PAD}
        unused = sum(step not in used for step in range(steps))
        assert total(coverage) == (int(unused == steps), unused), (chosen, steps, added)


def test_across_episodes_unused_steps_are_those_outside_the_stream():
    rng = random.Random(0)
    for _ in range(1000):
        pad = rng.random() < 0.5
        length, stride, tile = rng.randint(1, 5), rng.randint(1, 7), pad and rng.random() < 0.5
        chosen, added = options(length, stride, pad, tile, across_episodes=True), rng.randint(0, 1)
        episodes = [rng.randint(1, 6) for _ in range(rng.randint(1, 5))]
        coverage, start, expected = Coverage(chosen), 0, [0, 0]
        count = item_count(sum(n + added for n in episodes), chosen)
        used = {k * stride + i for k in range(count) for i in range(length)}
        for steps in episodes:
            coverage.add(steps, steps + added)
            unused = sum(frame not in used for frame in range(start, start + steps))
            expected = [expected[0] + (unused == steps), expected[1] + unused]
            start += steps + added
        coverage.finish()
        assert total(coverage) == tuple(expected), (chosen, episodes)


CASES = {
    "--items=pairs": {"too_short": (2, 2, 1)},
    "--items=frames": {},
    "--items=sequences --sequence_length=6": {"too_short": (3, 6, 4)},
    "--items=sequences --sequence_length=6 --pad_end_of_episodes": {},
    "--items=sequences --sequence_length=4 --stride_length=4": {"too_short": (2, 2, 1), "between_items": (0, 4, 0)},
    "--items=sequences --sequence_length=2 --stride_length=3": {"too_short": (2, 2, 1), "between_items": (0, 8, 0)},
    "--items=episodes": {},
    "--items=episodes --max_sequence_length=5 --bypass_partial_episodes": {"bypassed": (2, 16, 10)},
}
LENGTHS = (10, 1, 4, 6, 1)


@pytest.fixture
def source(tmp_path):
    return str(write_dataset(tmp_path / "data", [make_episode(n, seed=i) for i, n in enumerate(LENGTHS)], shards=2))


@pytest.mark.parametrize("flags", CASES)
def test_unused_steps_are_in_summary_json_and_report(source, tmp_path, capsys, flags):
    command = ["convert", source, str(tmp_path / "out"), *flags.split()]
    assert main(command) == 0
    out = capsys.readouterr().out
    expected = {r: dict(zip(("episodes", "steps", "longest"), n, strict=True)) for r, n in CASES[flags].items()}
    assert json.loads((tmp_path / "out" / "report.json").read_text()).get("unused", {}) == expected
    assert main([*command, "--json"]) == 0
    assert json.loads(capsys.readouterr().out).get("unused", {}) == expected
    assert ("in no item" in out) == bool(expected)
    for reason, counts in expected.items():
        assert f"({reason}: " in out
        assert f"{counts['steps']} step" in out


def test_no_item_at_all_is_an_error_that_says_why(tmp_path, capsys):
    source = str(write_dataset(tmp_path / "data", [make_episode(10, seed=i) for i in range(4)]))
    output = str(tmp_path / "out")
    command = ["convert", source, output, "--items=sequences", "--sequence_length=16"]
    for _ in range(2):  # the second run has nothing to do
        assert main(command) == 3
        out = capsys.readouterr().out
        assert "no item was written: 4 episodes with no item, " in out
        assert "--pad_end_of_episodes" in out
        assert "--allow_empty" in out
    assert main([*command, "--json"]) == 3
    assert "fewer frames than an item" in json.loads(capsys.readouterr().out)["error"]
    assert main([*command, "--allow_empty"]) == 0
    assert main([*command, "--pad_end_of_episodes", "--overwrite"]) == 0


EMPTY = {"rlds": ("rlds", ""), "lerobot": ("lerobot", "--split=none"), "d4rl": ("hdf5", "")}


@pytest.fixture(scope="module")
def nothing(tmp_path_factory):
    """Inputs without episodes, by name."""
    directory = tmp_path_factory.mktemp("nothing")
    found = {"rlds": write_dataset(directory / "empty", [], schema=default_schema(make_episode(3, observation=2)))}
    full = write_dataset(directory / "full", [make_episode(4, seed=i, observation=2) for i in range(7)])
    export(full, directory / "lerobot", "lerobot", fps=10)
    info = json.loads((directory / "lerobot/meta/info.json").read_text())
    (directory / "lerobot/meta/info.json").write_text(json.dumps({**info, "splits": {"none": "5:5", "whole": "0:7"}}))
    found["lerobot"] = directory / "lerobot"
    with contextlib.suppress(ImportError):
        import h5py

        with h5py.File(directory / "x.hdf5", "w") as file:
            for name, shape in {"observations": (0, 2), "actions": (0, 2), "rewards": (0,), "terminals": (0,)}.items():
                file[name] = np.zeros(shape)
        found["d4rl"] = directory / "x.hdf5"
    return found


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_input_ends_with_exit_code_3(nothing, tmp_path, capsys, name):
    if name not in nothing:
        pytest.skip("h5py is not installed")
    source, *flags = filter(None, EMPTY[name])
    convert = ["convert", str(nothing[name]), str(tmp_path / "out")]
    for command in (convert, convert, ["stats", str(nothing[name])]):  # the second run has nothing to do
        assert main([*command, f"--from={source}", "--workers=1", *flags]) == 3
        assert "the input has no episodes (--allow_empty accepts that)" in capsys.readouterr().out
    assert main([*convert, f"--from={source}", "--workers=1", *flags, "--allow_empty"]) == 0


@pytest.mark.parametrize("to", OUTPUTS)
def test_every_output_accepts_an_empty_input(nothing, tmp_path, capsys, to):
    command = ["convert", str(nothing["rlds"]), str(tmp_path / "out"), f"--to={to}", "--workers=1"]
    assert main([*command, *(["--fps=10"] if to == "lerobot" else [])]) == 3
    assert "no item was written: the input has no episodes" in capsys.readouterr().out
