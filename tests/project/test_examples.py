"""The examples' learner, on tables that push filled: batches are checked, the loss falls, failures are reported."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checkout import ROOT

from rlds_beam.cli.commands.serve import read_spec
from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.trajectories.options import FrameOptions

EXAMPLES = ROOT / "examples"
EPISODES, STEPS = 8, 20
PAIRS = EPISODES * (STEPS - 1)


@pytest.fixture(scope="module")
def train() -> Any:
    """examples/train.py, as a module."""
    spec = importlib.util.spec_from_file_location("train", EXAMPLES / "train.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    """Data of a policy that is easy to learn from a nested observation; void actions are not."""
    episodes = []
    for seed in range(EPISODES):
        episode = make_episode(STEPS, seed=seed, observation={"place": (2, 2), "speed": 3}, action=2)
        action = np.tanh(episode.steps["observation/speed"][:, :2])
        action[-1] = 1e3  # void in RLDS: no learner may treat it as an action
        episodes.append(episode.replace(steps={**episode.steps, "action": action}))
    return write_dataset(tmp_path_factory.mktemp("data"), episodes, shards=2)


@pytest.fixture(scope="module")
def server(dataset):
    """Tables: `full` with the pairs of the dataset, `long` with its sequences of 4, and `empty`."""
    import reverb

    spec = dataclasses.replace(read_spec(str(dataset), FrameOptions()), item_shape=(None,))
    running = reverb.Server([table(name, spec.to_tf()) for name in ("full", "long", "empty")])
    address = f"127.0.0.1:{running.port}"
    for flags in (["--table=full"], ["--table=long", "--items=sequences", "--sequence_length=4"]):
        assert main(["push", str(dataset), f"--reverb={address}", *flags]) == 0
    yield address
    running.stop()


def table(name: str, signature: Any) -> Any:
    import reverb

    uniform, fifo, limiter = reverb.selectors.Uniform(), reverb.selectors.Fifo(), reverb.rate_limiters.MinSize(1)
    return reverb.Table(name, uniform, fifo, 1000, limiter, signature=signature)


def arguments(server: str, table: str, dataset: Path) -> list[str]:
    return [f"--reverb={server}", f"--table={table}", f"--like={dataset}", "--steps=20", "--batch_size=32"]


def test_an_agent_learns_from_what_was_pushed(train, server, dataset, capsys):
    train.main(arguments(server, "full", dataset))
    said = capsys.readouterr().out
    assert f"{PAIRS} items" in said
    assert re.search(r"observation/place +float32 +\(32, 2, 2, 2\)", said)
    first, last = map(float, re.findall(r"([\d.]+) over", said))
    assert last < first < 10, "an action after the end of an episode was learned"


@pytest.mark.parametrize(
    ("table", "code", "said"), [("none", 2, "no table none; it has"), ("empty", 2, "is empty; fill it")]
)
def test_an_empty_or_missing_table_is_not_waited_for(train, server, dataset, capsys, table, code, said):
    with pytest.raises(SystemExit) as ended:
        train.main(arguments(server, table, dataset))
    assert ended.value.code == code and said in capsys.readouterr().err


def test_a_dataset_other_than_the_pushed_one_is_refused(train, server, tmp_path):
    other = write_dataset(tmp_path, [make_episode(4)])
    with pytest.raises(SystemExit, match="what --like names"):
        train.main(arguments(server, "full", other))
