"""LeRobot loads from the Hub what `rlds-beam upload` published, and rlds-beam reads what LeRobot pushed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hub_server import TOKEN, HubServer, hub_server
from lerobot_peer import FORMAT_VERSION, opened, write_with_lerobot

LOADED = """
import sys
import numpy as np
from lerobot.datasets.lerobot_dataset import LeRobotDataset

dataset = LeRobotDataset("robots/data")
rows = [dataset[i] for i in range(len(dataset))]
np.savez(sys.argv[1], **{name: np.stack([row[name] for row in rows]) for name in ("action", "observation.state")})
print(len(dataset), dataset.num_episodes, dataset.revision)
"""

PUSHED = """
import sys
from huggingface_hub import HfApi

api = HfApi()
api.create_repo("robots/own", repo_type="dataset", private=True)
api.upload_folder(repo_id="robots/own", folder_path=sys.argv[1], repo_type="dataset")
"""
"""What `LeRobotDataset.push_to_hub` does, without the card: its check asks huggingface.co, whatever HF_ENDPOINT is."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[HubServer]:
    with hub_server() as server:
        yield server


def run(hub: HubServer, home: Path, *command: object) -> str:
    """Runs Python with a new cache; `huggingface_hub` reads its variables when it is imported."""
    environment = {**os.environ, **hub.environment(home, TOKEN)}
    done = subprocess.run(
        [sys.executable, *map(str, command)], env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.parametrize("kind", ["output", "videos"])
def test_lerobot_loads_what_was_uploaded(kind, hub, request, tmp_path):
    output = request.getfixturevalue(kind)
    run(hub, tmp_path / "hf", "-m", "rlds_beam", "upload", output, "hf://datasets/robots/data", "--private")
    assert list(hub.repos["robots/data"].tags) == [f"v{FORMAT_VERSION}"]
    count, episodes, revision = run(hub, tmp_path / "cache", "-c", LOADED, tmp_path / "loaded.npz").split()[-3:]
    assert revision == f"v{FORMAT_VERSION}"
    assert int(episodes) == json.loads((output / "meta/info.json").read_text())["total_episodes"]
    loaded = np.load(tmp_path / "loaded.npz")
    assert len(loaded["action"]) == int(count) > 0
    local = opened(output)
    for i in (0, len(local) - 1):
        for name in ("action", "observation.state"):
            np.testing.assert_array_equal(loaded[name][i], local[i][name].numpy())


def test_what_lerobot_pushed_is_read(hub, request, tmp_path, moving):
    write_with_lerobot(tmp_path / "own", moving[1], "video")
    run(hub, tmp_path / "hf", "-c", PUSHED, tmp_path / "own")
    there, out = "hf://datasets/robots/own", tmp_path / "there"
    convert = ("-m", "rlds_beam", "convert", "--from=lerobot", "--to=rlds", "--workers=1")
    run(hub, tmp_path / "hf", *convert, there, out)
    run(hub, tmp_path / "hf", *convert, tmp_path / "own", tmp_path / "here")
    for file in (tmp_path / "here").glob("*.tfrecord*"):
        assert file.read_bytes() == (out / file.name).read_bytes()
