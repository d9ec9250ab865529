"""Compares with a plain loop over mcap's reader and mcap-ros2-support's decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("rosbags")
from ros2_bags import MAPPING, MS, read, robot, write_bag, write_mcap

from rlds_beam.images.encoded_images import EncodedImages


def expected(path: Path, by_stamp: bool = False) -> list[dict[str, Any]]:
    """The steps as a converter in one loop computes them: the last message of each topic, when an image comes."""
    from mcap.reader import make_reader
    from mcap_ros2.decoder import DecoderFactory

    latest: dict[str, tuple[int, Any]] = {}
    steps = []
    with path.open("rb") as file:
        for _, channel, message, decoded in make_reader(
            file, decoder_factories=[DecoderFactory()]
        ).iter_decoded_messages():
            latest[channel.topic] = message.log_time, decoded
            if channel.topic != "/camera/compressed" or not {"/joint_states", "/leader", "/task"} <= latest.keys():
                continue
            if any(message.log_time - latest[topic][0] > 100 * MS for topic in ("/joint_states", "/leader")):
                continue
            joints = {
                topic: dict(zip(latest[topic][1].name, latest[topic][1].position, strict=True))
                for topic in ("/joint_states", "/leader")
            }
            steps.append(
                {
                    "observation/image": bytes(decoded.data),
                    "observation/state": [joints["/joint_states"][name] for name in "abc"],
                    "action": [np.float32(joints["/leader"][name]) for name in "ca"],
                    "language_instruction": latest["/task"][1].data.encode(),
                    "timestamp_ns": message.log_time,
                }
            )
    return steps


@pytest.mark.parametrize("writer", ["mcap", "rosbags"])
def test_every_field_of_every_step(tmp_path: Path, writer: str) -> None:
    sent = [one for one in robot(40) if not 10 < (one.time // (100 * MS)) % 20 < 13 or one.topic != "/leader"]
    path = tmp_path / "a.mcap"
    if writer == "mcap":
        write_mcap(path, sent, chunk_size=20_000)
    else:
        write_bag(tmp_path / "b", sent)
        (path,) = (tmp_path / "b").glob("*.mcap")
    (episode,) = read(path, MAPPING)
    steps = expected(path)
    assert 30 < len(steps) == len(episode) < 40
    for name in steps[0]:
        column = episode.steps[name]
        values = [*column] if isinstance(column, EncodedImages) else column.tolist()
        np.testing.assert_array_equal(np.array(values), np.array([step[name] for step in steps]), name)
