"""`--keep`: text, episode fields, and the episode's key in each item, next to the trajectory."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rlds_beam.cli.main import main
from rlds_beam.encoding.example.reader import parse_example
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.trajectories.written_items import open_converted
from rlds_beam.testing import make_episode, read_payloads, write_dataset
from rlds_beam.trajectories.frames import keep_fields

LENGTHS = (6, 2, 9)
KEEP = "--keep=episode_key,observation/text,counts,episode_metadata"


def episode(n, seed):
    columns = {
        "observation/text": [f"put {seed} {t}" for t in range(n)],
        "counts": np.arange(2 * n, dtype=np.int64).reshape(n, 2) - 3,
        "lang": ["x"] * n,
    }
    metadata = {"file": f"/a/{seed}", "ok": seed % 2, "pose": np.full(3, seed, np.float32)}
    return make_episode(n, seed=seed, observation={"state": 3}, columns=columns, metadata=metadata)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return str(write_dataset(tmp_path_factory.mktemp("data"), [episode(n, i) for i, n in enumerate(LENGTHS)], shards=2))


@pytest.fixture
def convert(source, tmp_path):
    def run(*flags, name="out"):
        assert main(["convert", source, str(tmp_path / name), "--accept=duplicate_episode", *flags]) == 0
        return tmp_path / name

    return run


def expected(windows):
    """(seed, frames) of each item -> its kept values, with None for padding."""
    for seed, frames in windows:
        texts = [b"" if t is None else f"put {seed} {t}".encode() for t in frames]
        counts = [[0, 0] if t is None else [2 * t - 3, 2 * t - 2] for t in frames]
        yield texts, counts, f"/a/{seed}".encode(), seed % 2, [float(seed)] * 3


def pairs():
    return [(seed, (t, t + 1)) for seed, n in enumerate(LENGTHS) for t in range(n - 1)]


def examples(output):
    names = [shard["file"] for shard in json.loads((output / "manifest.json").read_text())["shards"]]
    return [parse_example(payload) for name in names for payload in read_payloads(output / name)]


def carried(example):
    return (
        example["observation/text"].strings(),
        example["counts"].ints().reshape(-1, 2).tolist(),
        example["episode_metadata/file"].strings()[0],
        int(example["episode_metadata/ok"].ints()[0]),
        example["episode_metadata/pose"].floats().tolist(),
    )


def test_each_item_has_its_own_values(convert):
    found = examples(convert(KEEP))
    assert [carried(example) for example in found] == [*expected(pairs())]
    keys = [EpisodeKey.parse(example["episode_key"].strings()[0].decode()) for example in found]
    assert [keys.count(key) for key in dict.fromkeys(keys)] == [n - 1 for n in LENGTHS]
    assert "lang" not in found[0]


def test_padding_and_an_added_step(convert):
    flags = ["--items=sequences", "--sequence_length=8", "--pad_end_of_episodes"]
    found = [carried(example) for example in examples(convert(KEEP, *flags))]
    windows = [(0, (*range(6), None, None)), (1, (0, 1, *[None] * 6)), (2, range(8)), (2, range(1, 9))]
    assert found == [*expected(windows)]
    absorbing = examples(convert(KEEP, "--items=episodes", "--last_step=absorbing", name="absorbing"))
    assert [carried(example) for example in absorbing] == [
        *expected([(seed, (*range(n), None)) for seed, n in enumerate(LENGTHS)])
    ]


@pytest.mark.parametrize("items", ["pairs", "frames", "episodes"])
def test_load_trajectories_and_tfds_read_them(convert, items):
    pytest.importorskip("tf_agents")
    import tensorflow_datasets as tfds

    from rlds_beam.formats.trajectories.loaders import load_trajectories

    output = convert(KEEP, f"--items={items}")
    steps = [[*range(n)] for n in LENGTHS]
    windows = {
        "pairs": pairs(),
        "frames": [(seed, (t,)) for seed, own in enumerate(steps) for t in own],
        "episodes": [*enumerate(steps)],
    }[items]
    wanted = [*expected(windows)]
    loaded = [kept for _, kept in load_trajectories(str(output), kept=True)]
    read = list(tfds.builder_from_directory(str(output)).as_dataset("train"))
    assert len(loaded) == len(read) == len(wanted)
    for kept, example, (texts, counts, file, ok, pose) in zip(loaded, read, wanted, strict=True):
        for get in (kept.__getitem__, lambda path, example=example: nested(example, path)):
            one = items == "frames"
            assert np.asarray(get("observation/text").numpy(), object).tolist() == (texts[0] if one else texts)
            assert get("counts").numpy().tolist() == (counts[0] if one else counts)
            assert get("episode_metadata/file").numpy() == file
            assert int(get("episode_metadata/ok")) == ok
            assert get("episode_metadata/pose").numpy().tolist() == pose
            assert get("episode_key").numpy().startswith(b"testing/1.0.0:train:")
    if items == "pairs":
        trajectory, kept = next(iter(load_trajectories(str(output), batch_size=4, kept=True)))
        assert trajectory.reward.shape == kept["observation/text"].shape == (4, 2)
        assert kept["episode_key"].shape == (4,)


def nested(example, path):
    for name in path.split("/"):
        example = example[name]
    return example


def test_the_trajectory_is_the_same_with_and_without_kept_fields(convert):
    with_them, without = convert(KEEP), convert(name="without")
    found, wanted = (
        [items for work in replay.ranges for items in replay.read_items(work)]
        for replay in (open_converted(str(with_them)), open_converted(str(without)))
    )
    assert len(found) == len(wanted)
    for one, other in zip(found, wanted, strict=True):
        for path, column in other.frames.columns.items():
            np.testing.assert_array_equal(one.frames[path], column)
    specs = [next(output.glob("*.spec")).read_bytes() for output in (with_them, without)]
    assert specs[0] == specs[1]


def test_images_as_jpeg_and_kept_text(tmp_path):
    pixels = np.zeros((3, 8, 8, 3), np.uint8)
    data = make_episode(3, observation={"state": 2}, columns={"observation/camera": pixels, "lang": ["a", "b", "c"]})
    source = write_dataset(tmp_path / "data", [data])
    assert main(["convert", str(source), str(tmp_path / "out"), "--images=jpeg", "--keep=lang,episode_key"]) == 0
    found = examples(tmp_path / "out")
    assert [example["lang"].strings() for example in found] == [[b"a", b"b"], [b"b", b"c"]]
    assert found[0]["observation/camera/0"].strings()[0].startswith(b"\xff\xd8")


def test_fields_that_cannot_be_kept(source, tmp_path, capsys):
    schema = open_source(source).schema
    for name, said in {
        "episod_key": "did you mean episode_key?",
        "file": "did you mean episode_metadata/file?",
        "observation/state": "the trajectory already has",
        "reward": "the trajectory already has",
    }.items():
        with pytest.raises(UsageError) as error:
            keep_fields([name], schema, ["observation/state", "reward", "action"])
        assert said in str(error.value)
    assert main(["convert", source, str(tmp_path / "out"), "--keep=nothing"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
