"""What open_source finds and refuses."""

import gzip
import shutil

import pytest

from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader
from rlds_beam.testing import make_episode, shard_paths, write_dataset


def episodes(count, start=0):
    return [make_episode(4, seed=start + i, metadata={"episode_id": start + i}) for i in range(count)]


def read_ids(source, ranges=None):
    reader = EpisodeReader(source)
    return [
        int(episode.metadata["episode_metadata/episode_id"])
        for work in ranges or plan_ranges(source)
        for segment in work.segments
        for episode in reader.read(work.split, segment)
    ]


@pytest.fixture
def dataset(tmp_path):
    return write_dataset(tmp_path, episodes(20), name="toy", shards=3)


def test_a_tfds_directory(dataset):
    source = open_source(str(dataset))
    assert source.dataset == "toy/1.0.0"
    assert source.episodes == 20
    assert [shard.index for shard in source.splits[0].shards] == [0, 1, 2]
    assert read_ids(source) == list(range(20))


def test_a_parent_of_one_version(dataset):
    assert open_source(str(dataset.parent)).dataset == "toy/1.0.0"


def test_a_path_object_is_an_input(dataset):
    for from_ in (None, "rlds"):
        assert open_source(dataset, from_=from_).dataset == open_source(str(dataset), from_="rlds").dataset


def test_a_parent_of_several_versions_is_refused(dataset):
    shutil.copytree(dataset, dataset.parent / "2.0.0")
    with pytest.raises(UsageError, match=r"holds 2 datasets: choose one of 1\.0\.0, 2\.0\.0"):
        open_source(str(dataset.parent))


def test_envloggers_shard_names(tmp_path):
    path = write_dataset(tmp_path, episodes(6), shards=2, numbered=False)
    assert not any("-of-" in shard.name for shard in shard_paths(path))
    assert read_ids(open_source(str(path))) == list(range(6))


def test_shard_files_by_name(dataset):
    source = open_source(f"{dataset}/*.tfrecord*")
    assert read_ids(source) == list(range(20))
    assert source.episodes is None
    assert read_ids(open_source([str(p) for p in reversed(shard_paths(dataset))]))[0] > 0


def test_shard_files_with_features_elsewhere(dataset, tmp_path):
    (dataset / "features.json").rename(tmp_path / "features.json")
    with pytest.raises(UsageError, match="--features=PATH"):
        open_source(f"{dataset}/*.tfrecord*")
    assert len(read_ids(open_source(f"{dataset}/*.tfrecord*", features=str(tmp_path / "features.json")))) == 20


@pytest.mark.parametrize(
    ("split", "expected"),
    [
        ("train", range(20)),
        ("train[:10%]", range(2)),
        ("train[10%:]", range(2, 20)),
        ("train[5:12]", range(5, 12)),
        ("train[-3:]", range(17, 20)),
        ("train[:-18]", range(2)),
        ("all", range(20)),
        ("train[33%:66%]", range(7, 13)),
    ],
)
@pytest.mark.parametrize("compressed", [False, True])
def test_slices_count_episodes_as_tfds_does(dataset, split, expected, compressed):
    if compressed:
        for shard in shard_paths(dataset):
            shard.write_bytes(gzip.compress(shard.read_bytes()))
    assert read_ids(open_source(str(dataset), split)) == list(expected)


@pytest.mark.parametrize("split", ["train[:10%]", "train[5:12]", "train[-3:]", "train[33%:67%]", "train[:-1]"])
def test_slices_equal_those_of_tfds(dataset, split):
    tfds = pytest.importorskip("tensorflow_datasets")
    read = tfds.builder_from_directory(str(dataset)).as_dataset(split, shuffle_files=False)
    assert read_ids(open_source(str(dataset), split)) == [int(e["episode_metadata"]["episode_id"]) for e in read]


REFUSED = {
    "train[7:7]": r"train\[7:7\] is empty \(7 to 7\): train has 20 episodes",
    "train[:1%]": "is empty",
    "train[9:3]": "is empty",
    "train[90:95]": "is out of range: train has 20 episodes",
    "train[0:100]": "is out of range",
    "train[:200%]": "is out of range",
    "train[-21:]": "is out of range",
    "train[:-30]": "is out of range",
}


@pytest.mark.parametrize("split", REFUSED)
def test_empty_and_out_of_range_slices_are_refused(dataset, tmp_path, split, capsys):
    with pytest.raises(UsageError, match=REFUSED[split]):
        open_source(str(dataset), split)
    assert main(["convert", str(dataset), str(tmp_path / "out"), f"--split={split}"]) == 2
    assert not (tmp_path / "out").exists()
    capsys.readouterr()


def test_all_of_several_splits(dataset, tmp_path):
    write_dataset(tmp_path, episodes(5, 100), name="toy", split="test")
    assert [s.name for s in open_source(str(dataset), "all").splits] == ["train", "test"]


def test_several_splits(dataset, tmp_path):
    write_dataset(tmp_path, episodes(5, 100), name="toy", split="test")
    assert [s.name for s in open_source(str(dataset)).splits] == ["train", "test"]
    assert read_ids(open_source(str(dataset), "test+train[:2]")) == [100, 101, 102, 103, 104, 0, 1]


def test_an_empty_directory(tmp_path):
    with pytest.raises(UsageError, match="no such file"):
        open_source(str(tmp_path / "absent"))
    with pytest.raises(UsageError, match=r"(?s)not a dataset in a known format.*  rlds +features\.json"):
        open_source(str(tmp_path))
    with pytest.raises(UsageError, match=r"no features\.json"):
        open_source(str(tmp_path), from_="rlds")


def test_missing_and_extra_shards_are_named(dataset):
    paths = shard_paths(dataset)
    shutil.copy(paths[0], dataset / "toy-train.tfrecord-00007-of-00008")
    paths[1].unlink()
    source = open_source(str(dataset))
    assert [v.rule for v in source.details.violations] == ["missing_shard", "extra_shard"]
    assert paths[1].name in source.details.violations[0].detail
    assert "00007-of-00008" in source.details.violations[1].detail
    assert [shard.index for shard in source.splits[0].shards] == [0, 2]


@pytest.mark.parametrize("shards", [None, 1, 2, 5, 19])
def test_ranges_hold_every_record_once(dataset, shards):
    source = open_source(str(dataset))
    ranges = plan_ranges(source, shards)
    assert len(ranges) == (shards or 1)
    assert read_ids(source, ranges) == list(range(20))
    assert [work.index for work in ranges] == list(range(len(ranges)))
    assert all(work.of == len(ranges) for work in ranges)


def test_gzip_shards_are_not_cut(dataset):
    for shard in shard_paths(dataset):
        shard.write_bytes(gzip.compress(shard.read_bytes()))
    source = open_source(str(dataset))
    assert read_ids(source, plan_ranges(source, 2)) == list(range(20))
    with pytest.raises(UsageError, match="--shards=9: split train gives 3"):
        plan_ranges(source, 9)


def test_whole_shards_are_separate_streams(dataset):
    source = open_source(str(dataset))
    assert [len(work.segments) for work in plan_ranges(source, whole_shards=True)] == [1, 1, 1]
    with pytest.raises(UsageError, match="--across_episodes"):
        plan_ranges(source, 2, whole_shards=True)
