from __future__ import annotations

import io
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

pytest.importorskip("rosbags")
from edits import edited
from ros2_bags import (
    MAPPING,
    MS,
    POSE,
    T0,
    Sent,
    camera_info,
    compressed,
    flag,
    header,
    imu,
    joints,
    jpegs,
    opened,
    pixels,
    read,
    robot,
    text,
    write_bag,
    write_mcap,
)

import rlds_beam
from rlds_beam.connectors import Resample
from rlds_beam.errors import NeedsMappingError, UsageError
from rlds_beam.formats.ros2.mapping import parse_mapping
from rlds_beam.formats.ros2.source import Ros2Source
from rlds_beam.images.encoded_images import EncodedImages


def mapped(field: str, rest: str = "reference: /joint_states") -> str:
    return f"{rest}\nfields:\n  observation/x: {field}\n"


@pytest.mark.parametrize("storage", ["mcap", "db3", "file"])
def test_every_field(tmp_path: Path, storage: str) -> None:
    sent = robot()
    bag = write_mcap(tmp_path / "a.mcap", sent) if storage == "file" else write_bag(tmp_path / "a", sent, storage)
    (episode,) = read(bag)
    assert not episode.faults and len(episode) == 6
    images = episode.steps["observation/image"]
    assert isinstance(images, EncodedImages) and [*images] == jpegs(6)
    # the latest joint states at 50, 150, ... ms are those of 40, 140, ... ms, whatever the order of their names
    latest = np.arange(6) * 5 + 2
    np.testing.assert_array_equal(episode.steps["observation/state"], latest[:, None] + [0.1, 0.2, 0.3])
    np.testing.assert_array_equal(episode.steps["action"], -(latest[:, None] + [0.3, 0.1]).astype(np.float32))
    assert episode.steps["language_instruction"].tolist() == [b"pick the cube"] * 6  # type: ignore[union-attr]
    assert episode.steps["is_last"].tolist() == [False] * 5 + [True]  # type: ignore[union-attr]
    assert not episode.steps["is_terminal"].any()  # type: ignore[union-attr]
    assert episode.metadata["episode_metadata/start_time_ns"] == T0 + 50 * MS
    assert episode.metadata["episode_metadata/dropped_frames"] == 0


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("use_chunking", [True, False])
def test_storage_of_mcap(tmp_path: Path, compression: str, use_chunking: bool) -> None:
    from mcap.writer import CompressionType

    size = 4096 if use_chunking else 0
    bag = write_mcap(tmp_path / "a.mcap", robot(), compression=CompressionType[compression.upper()], chunk_size=size)
    (episode,) = read(bag)
    (same,) = read(write_bag(tmp_path / "b", robot()))
    np.testing.assert_array_equal(episode.steps["observation/state"], same.steps["observation/state"])


@pytest.mark.parametrize(("storage", "mode"), [("db3", "MESSAGE"), ("mcap", "MESSAGE"), ("mcap", "STORAGE")])
def test_compressed_messages(tmp_path: Path, storage: str, mode: str) -> None:
    (episode,) = read(write_bag(tmp_path / "a", robot(), storage, compression=mode))
    assert len(episode) == 6 and not episode.faults


def test_compressed_file_is_refused(tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "a", robot(), "db3", compression="FILE")
    with pytest.raises(UsageError, match="zstd -d"):
        opened(bag, MAPPING)


def test_incomplete_steps_are_dropped_and_counted(tmp_path: Path) -> None:
    sent = [one for one in robot() if one.topic != "/leader" or one.time > T0 + 300 * MS]
    source = opened(write_bag(tmp_path / "a", sent), MAPPING)
    (episode,) = read(tmp_path / "a")
    assert len(episode) == 3
    assert episode.metadata["episode_metadata/dropped_frames"] == 3
    assert episode.metadata["episode_metadata/dropped"] == b"action (/leader): 3"
    assert source.details.notes[0] == "no reward is recorded: it is 0"


def test_no_complete_step(tmp_path: Path) -> None:
    late = [text(T0 + 10**10, "late")]
    sent = [one for one in robot() if one.topic != "/task"] + late
    (episode,) = read(write_bag(tmp_path / "a", sent))
    assert (
        "none of 6 steps is complete; lacking or older than max_age_s: language_instruction (/task): 6"
        in episode.faults[0].detail
    )


def test_fixed_rate(tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "a", [joints(T0 + i * 10 * MS, "a", [i]) for i in range(101)])
    (episode,) = read(bag, mapped("{topic: joint_states, field: position}", "rate: 30"))
    times = np.asarray(episode.steps["timestamp_ns"]) - T0
    assert len(episode) == 31 and times.tolist() == [round(i * 1e9 / 30) for i in range(31)]
    np.testing.assert_array_equal(np.asarray(episode.steps["observation/x"])[:, 0], times // (10 * MS))


def test_time_of_the_header(tmp_path: Path) -> None:
    """A message recorded late counts from its stamp on."""
    sent = [joints(T0 + i * 10 * MS, "a", [i]) for i in range(10)]
    sent += [joints(T0 + i * 10 * MS + 5 * MS, "a", [-i], "/late", stamp=T0 + i * 10 * MS) for i in range(10)]
    bag = write_bag(tmp_path / "a", sorted(sent, key=lambda one: one.time))
    fields = mapped("{topic: /late, field: position}")
    (by_log,), (by_stamp,) = read(bag, fields), read(bag, f"time: header\n{fields}")
    assert np.ravel(by_log.steps["observation/x"]).tolist() == [-i for i in range(9)]  # type: ignore[arg-type]
    assert np.ravel(by_stamp.steps["observation/x"]).tolist() == [-i for i in range(10)]  # type: ignore[arg-type]


def test_paths_into_messages(tmp_path: Path) -> None:
    position, turn = {"x": 1.0, "y": 2.0, "z": 3.0}, {"x": 0.1, "y": 0.2, "z": 0.3, "w": 0.4}
    content = {"header": header(T0), "pose": {"position": position, "orientation": turn}}
    bag = write_bag(tmp_path / "a", [Sent(T0, "/pose", POSE, content)])
    fields = """reference: /pose
fields:
  observation/x: {topic: /pose, field: pose.position.x}
  observation/pose: {topic: /pose, field: [pose.position, pose.orientation]}
  observation/frame: {topic: /pose, field: header.frame_id}
  observation/stamp: {topic: /pose, field: header.stamp.nanosec}
"""
    (episode,) = read(bag, fields)
    steps = {path: np.asarray(column)[0] for path, column in episode.steps.items()}
    assert steps["observation/x"] == 1.0 and steps["observation/x"].dtype == np.float64
    assert steps["observation/pose"].tolist() == [1, 2, 3, 0.1, 0.2, 0.3, 0.4]
    assert steps["observation/frame"] == b"base" and steps["observation/stamp"].dtype == np.uint32
    assert steps["is_first"] and steps["is_last"]


PIXELS = np.arange(6 * 4 * 3, dtype=np.uint8).reshape(6, 4, 3)


@pytest.mark.parametrize(
    ("encoding", "stored", "expected"),
    [
        ("rgb8", PIXELS, PIXELS),
        ("bgr8", PIXELS, PIXELS[..., ::-1]),
        ("mono8", PIXELS[..., :1], PIXELS[..., :1]),
        ("16UC1", PIXELS[..., :1].astype("<u2") * 300, PIXELS[..., :1].astype("u2") * 300),
        ("32FC1", PIXELS[..., :1].astype("<f4") / 7, PIXELS[..., :1].astype("f4") / 7),
        ("bgra8", np.repeat(PIXELS[..., :1], 4, 2), np.repeat(PIXELS[..., :1], 4, 2)),
    ],
)
@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("padding", [0, 5])
def test_images(tmp_path: Path, encoding: str, stored: Any, expected: Any, big: bool, padding: int) -> None:
    rows = stored.astype(stored.dtype.newbyteorder(">")) if big else stored
    flat = np.ascontiguousarray(rows).view(np.uint8).reshape(6, -1)
    padded = np.pad(flat, ((0, 0), (0, padding)), constant_values=99)
    bag = write_bag(tmp_path / "a", [pixels(T0, padded.tobytes(), encoding, (6, 4), padded.shape[1], big)])
    (episode,) = read(bag, mapped("{topic: /image}", "reference: /image"), raw_images="raw")
    column = episode.steps["observation/x"]
    assert isinstance(column, np.ndarray) and column.dtype == expected.dtype
    np.testing.assert_array_equal(column[0], expected)
    (episode,) = read(bag, mapped("{topic: /image}", "reference: /image"))
    column = episode.steps["observation/x"]
    assert isinstance(column, EncodedImages) == (encoding != "32FC1")
    shown = column.decode()[0] if isinstance(column, EncodedImages) else column[0]
    assert shown.dtype == expected.dtype and np.array_equal(shown, expected)
    (episode,) = read(bag, mapped("{topic: /image}", "reference: /image"), raw_images="jpeg")
    column = episode.steps["observation/x"]
    is_color = expected.dtype == np.uint8 and expected.shape[-1] in (1, 3)
    assert is_color == (isinstance(column, EncodedImages) and column.image(0).startswith(b"\xff\xd8"))


def png16() -> bytes:
    from PIL import Image

    file = io.BytesIO()
    Image.fromarray(np.arange(12, dtype=np.uint16).reshape(3, 4) * 5000).save(file, "PNG")
    return file.getvalue()


def test_compressed_depth(tmp_path: Path) -> None:
    """image_transport puts 12 bytes before the PNG."""
    pytest.importorskip("PIL")
    label = "16UC1; compressedDepth png"
    bag = write_bag(tmp_path / "a", [compressed(T0, bytes(12) + png16(), "/depth", label)])
    (episode,) = read(bag, mapped("{topic: /depth}", "reference: /depth"))
    images = episode.steps["observation/x"]
    assert isinstance(images, EncodedImages) and images.image(0) == png16()
    np.testing.assert_array_equal(images.decode()[0, ..., 0], np.arange(12).reshape(3, 4) * 5000)


@pytest.mark.parametrize(
    "label", ["32FC1; compressedDepth png", "16UC1; compressedDepth rvl", "rgb8; tiff compressed "]
)
def test_refused_images(tmp_path: Path, label: str) -> None:
    bag = write_bag(tmp_path / "a", [compressed(T0, bytes(40), "/depth", label)])
    with pytest.raises(UsageError, match="can be copied"):
        opened(bag, mapped("{topic: /depth}", "reference: /depth"))


MARKED = mapped("{topic: /joint_states, field: position}") + "episodes: "


def test_episodes_between_markers(tmp_path: Path) -> None:
    sent = [joints(T0 + i * 10 * MS, "a", [i]) for i in range(100)]
    sent += [flag(T0 + ms * MS, on) for ms, on in [(95, True), (195, False), (395, True), (495, False), (905, True)]]
    bag = write_bag(tmp_path / "a", sorted(sent, key=lambda one: one.time))
    episodes = read(bag, MARKED + "{topic: /recording, start: [true], stop: [false]}", ranges=3)
    states = [np.ravel(one.steps["observation/x"]).tolist() for one in episodes[:2]]  # type: ignore[arg-type]
    assert states == [[*range(10, 20)], [*range(40, 50)]]
    assert "the bag ends before /recording stops this episode" in episodes[2].faults[0].detail


def test_markers_of_text_and_discarded_episodes(tmp_path: Path) -> None:
    sent = [joints(T0 + i * 10 * MS, "a", [i]) for i in range(100)]
    marks = [(95, "start"), (195, "bad"), (295, "start"), (395, "start"), (495, "stop"), (500, "hello")]
    sent += [text(T0 + ms * MS, mark, "/marks") for ms, mark in marks]
    bag = write_bag(tmp_path / "a", sorted(sent, key=lambda one: one.time))
    first, second, third = read(bag, MARKED + "{topic: /marks, start: start, stop: stop, discard: bad}")
    assert "discarded: /marks says bad" in first.faults[0].detail
    assert "begins another episode" in second.faults[0].detail
    assert len(third) == 10


def test_gaps(tmp_path: Path) -> None:
    sent = [text(T0 - 10**12, "old task")]
    sent += [joints(T0 + (i + 500 * (i // 10)) * 10 * MS, "a", [i]) for i in range(30)]
    bag = write_bag(tmp_path / "a", sent)
    field = "  language_instruction: {topic: /task, field: data, max_age_s: null}\n"
    episodes = read(bag, mapped("{topic: /joint_states, field: position}") + field + "episodes: {gap_s: 1}", ranges=2)
    assert [len(one) for one in episodes] == [10, 10, 10]
    assert episodes[2].steps["language_instruction"][0] == b"old task"


def test_a_directory_of_bags(tmp_path: Path) -> None:
    for i in range(3):
        write_bag(tmp_path / "bags" / f"b{i}", robot(seed=i), ["mcap", "db3"][i % 2])
    episodes = read(tmp_path / "bags")
    assert [one.key.shard for one in episodes] == [0, 1, 2] and not any(one.faults for one in episodes)


def test_a_bag_without_a_topic_costs_that_bag(tmp_path: Path) -> None:
    write_bag(tmp_path / "bags" / "a", robot())
    write_bag(tmp_path / "bags" / "b", [one for one in robot() if one.topic != "/leader"])
    first, second = read(tmp_path / "bags")
    assert not first.faults and "the bag has no topic /leader" in second.faults[0].detail


def test_without_a_mapping_one_is_proposed(tmp_path: Path) -> None:
    bag = write_bag(tmp_path / "a", robot())
    with pytest.raises(NeedsMappingError, match="inspect") as error:
        Ros2Source.open(str(bag))
    said = error.value.propose()
    assert "/joint_states       sensor_msgs/msg/JointState" in said and "50.0" in said
    card = said.partition("\n\n")[0].splitlines()[1:]
    assert card[0] == "rate      10.0 Hz, that of /camera/compressed" and card[1].startswith("time      0.6 s, ")
    assert card[2:] == [
        "camera    /camera/compressed: 24 x 16, jpeg, 10.0 Hz",
    ]
    mapping = said[said.index("reference:") :]
    (episode,) = read(bag, mapping)
    assert not episode.faults and "action" in episode.steps


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rate": 10}, "give either reference"),
        ({"fields": {"observation/x": {"topik": "/a"}}}, "unknown field `topik`"),
        ({"fields": {"obs/x": {"topic": "/a"}}}, "obs/x: neither a step field nor one of the episode"),
        ({"fields": {"is_first": {"topic": "/a"}}}, "is made by rlds-beam"),
        ({"fields": {"observation/x": {"topic": "/a", "names": ["b"]}}}, "names selects from one field"),
        ({"episodes": {"topic": "/m"}}, "the values that begin an episode"),
        ({"episodes": {"topic": "/m", "start": [True], "stop": ["true"]}}, "has two meanings"),
        ({"fps": 10, "reference": None, "rate": 5}, "fps is 10, but rate is 5"),
    ],
)
def test_wrong_mappings(changed: dict[str, Any], said: str) -> None:
    content = {"reference": "/a", "fields": {"observation/x": {"topic": "/a"}}}
    assert parse_mapping(content, "topics.yaml").fields[0].topic == "/a"
    with pytest.raises(UsageError, match=f"topics.yaml: .*{said}"):
        parse_mapping({**content, **changed}, "topics.yaml")


def transform(time: int, parent: str, child: str, shift: list[float], turn: list[float]) -> Sent:
    """A static transform, each from a publisher of its own."""
    pose = {"translation": dict(zip("xyz", shift, strict=True)), "rotation": dict(zip("xyzw", turn, strict=True))}
    stamped = {"header": header(time) | {"frame_id": parent}, "child_frame_id": child, "transform": pose}
    return Sent(time, "/tf_static", "tf2_msgs/msg/TFMessage", {"transforms": [stamped]})


def test_the_calibration_of_a_camera_goes_with_its_images_to_lerobot(tmp_path: Path) -> None:
    """By the mapping that inspect proposes; half the pixels give half the focal length."""
    for number in range(2):
        sent = robot(seed=number) + [camera_info(T0 + (100 * i + 40) * MS) for i in range(6)]
        sent += [transform(T0 + 10, "gripper", "camera", [0, 0, 0.1], [0, 0, 0, 1])]
        sent += [transform(T0 + 20, "world", "gripper", [1, 2, 3], [0, 0, 0.5**0.5, 0.5**0.5])]
        write_bag(tmp_path / "bags" / str(number), sorted(sent, key=lambda one: one.time))
    with pytest.raises(NeedsMappingError) as caught:
        Ros2Source.open(str(tmp_path / "bags"))
    proposed = caught.value.propose()
    (tmp_path / "topics.yaml").write_text(proposed[proposed.index("reference:") :])
    out, again = str(tmp_path / "out"), str(tmp_path / "again")
    small = "ResizeImages(8, 12, minimum=8)"
    topics = str(tmp_path / "topics.yaml")
    rlds_beam.convert(str(tmp_path / "bags"), out, to="lerobot", topics=topics, connectors=small)
    rlds_beam.convert(out, again, to="rlds")
    for dataset in (out, again):
        for episode in rlds_beam.open_dataset(dataset):
            known = {path.rpartition("/")[2]: value for path, value in episode.items()}
            np.testing.assert_allclose(known["camera_intrinsics"], [45, 0, 5.5, 0, 42.5, 3.5, 0, 0, 1])
            np.testing.assert_allclose(known["camera_distortion"], [0.1, -0.05, 0.002, 0.001, 0.0])
            assert (known["camera_distortion_model"], known["camera_frame_id"]) == (b"plumb_bob", b"camera")
            gripper = np.add(Rotation.from_rotvec([0, 0, np.pi / 2]).apply([0, 0, 0.1]), [1, 2, 3])
            np.testing.assert_allclose(known["camera_extrinsics"] @ [0, 0, 0, 1], [*gripper, 1])
            np.testing.assert_allclose(known["camera_extrinsics"][:3, :3] @ [1, 0, 0], [0, 1, 0], atol=1e-12)
            assert known["camera_extrinsics_base"] == b"world"


def test_a_calibration_that_changes_within_an_episode_rejects_it(tmp_path: Path) -> None:
    path = "episode_metadata/observation/image_intrinsics"
    mapping = f"{MAPPING}  {path}: {{topic: /camera/camera_info, field: k}}\n"
    sent = robot() + [camera_info(T0 + (100 * i + 40) * MS, 90.0 + (i > 3)) for i in range(6)]
    (episode,) = read(write_bag(tmp_path / "a", sorted(sent, key=lambda one: one.time)), mapping)
    assert "camera_info) changes within the episode: map it to a step field" in str(episode.faults[0])
    (episode,) = read(tmp_path / "a", mapping.replace(path, "observation/image_intrinsics"))
    assert np.asarray(episode.steps["observation/image_intrinsics"])[:, 0].tolist() == [90.0] * 4 + [91.0] * 2
    with pytest.raises(UsageError, match="JointState has no field transforms"):
        opened(tmp_path / "a", f"{MAPPING}  episode_metadata/pose: {{topic: /leader, frame: camera}}\n")


WINDOW = "{topic: /imu, field: linear_acceleration, window: 200}"
WITH_IMU = MAPPING.replace("fields:", f"fields:\n  observation/imu: {WINDOW}")


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(gaps=st.lists(st.integers(10, 120), min_size=12, max_size=40), rate=st.sampled_from([10, 5, 4, 20]))
def test_every_sample_of_a_fast_signal_is_read_once_in_order(tmp_path: Path, gaps: list[int], rate: float) -> None:
    """An IMU beside a camera of 10 Hz: each sample up to the last step is in one, since a step before the first."""
    at = T0 + np.cumsum([0, *gaps]) * MS
    values = np.arange(len(at) * 3).reshape(-1, 3) + 1.0
    sent = [*robot(8), *(imu(int(time), row) for time, row in zip(at, values, strict=True))]
    bag = write_bag(Path(tempfile.mkdtemp(dir=tmp_path)) / "a", sorted(sent, key=lambda one: one.time))
    (episode,) = edited(Resample(rate, recorded_fps=10, last_action="real"), *read(bag, WITH_IMU))
    frames = T0 + (100 * np.arange(8) + 50) * MS
    last = 6 if rate == 5 else 7  # the last frame that a new step shows
    expected = (at > frames[0] - 100 * MS) & (at <= frames[last])
    windows, counts, times = (
        np.asarray(episode.steps[f"observation/imu{ending}"]) for ending in ("", "_samples", "_sample_times")
    )
    inside = np.arange(windows.shape[1]) < counts[:, None]
    np.testing.assert_array_equal(windows[inside], values[expected])
    assert not windows[~inside].any()
    steps = np.repeat(np.arange(len(counts)) / rate * 1e9 + frames[0], counts)
    np.testing.assert_allclose(times[inside], (at[expected] - steps) / 1e9, atol=1e-4)


@pytest.mark.parametrize("to", ["rlds", "lerobot"])
def test_an_imu_at_1_khz_beside_a_camera_survives_with_its_names(tmp_path: Path, to: str) -> None:
    names = "[linear_acceleration.x, linear_acceleration.y, linear_acceleration.z]"
    mapping = WITH_IMU.replace("field: linear_acceleration", f"field: {names}")
    sent = [*robot(), *(imu(T0 + i * MS, [i, i + 0.25, i + 0.5]) for i in range(600))]
    write_bag(tmp_path / "a", sorted(sent, key=lambda one: one.time))
    (tmp_path / "topics.yaml").write_text(mapping)
    out = tmp_path / "out/toy/1.0.0"
    options = {"topics": str(tmp_path / "topics.yaml"), "connectors": "Resample(5)"}
    rlds_beam.convert(str(tmp_path / "a"), str(out), to=to, **options)
    opened = rlds_beam.open_dataset(out, unit="steps")
    batch = next(opened.batches(3))
    windows, counts = batch["observation/imu"], batch["observation/imu_samples"]
    inside = np.arange(windows.shape[1]) < counts[:, None]
    np.testing.assert_array_equal(windows[inside][:, 0], np.arange(sum(counts)))
    assert windows.shape == (3, 400, 3) and counts.tolist() == [51, 200, 200]
    assert opened.fields["observation/imu"].names == tuple(names.strip("[]").split(", "))


def test_a_window_with_more_samples_than_said_is_rejected(tmp_path: Path) -> None:
    sent = [*robot(), *(imu(T0 + i * 10 * MS, np.ones(3)) for i in range(60))]
    with pytest.raises(NeedsMappingError) as caught:
        Ros2Source.open(str(write_bag(tmp_path / "b", sorted(sent, key=lambda one: one.time))))
    assert "  # the latest sample; window: 10 gives all since the step before" in caught.value.propose()
    mapping = WITH_IMU.replace("window: 200", "window: 9")
    (episode,) = read(write_bag(tmp_path / "a", sorted(sent, key=lambda one: one.time)), mapping)
    assert "observation/imu: 10 samples of a step, more than window: 9" in str(episode.faults[0])
    (episode,) = read(tmp_path / "a", mapping.replace("window: 9", "window: 10"))
    assert episode.steps["observation/imu"].shape == (6, 10, 3) and not episode.faults
