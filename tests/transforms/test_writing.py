"""WriteToTrajectoryRecords and WriteRejected in a user's pipeline."""

import json

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.options.pipeline_options import PipelineOptions

from rlds_beam.encoding.example.reader import parse_example
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.errors import UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.output.commits import read_manifest
from rlds_beam.testing import make_episode, read_payloads, shard_paths, write_dataset
from rlds_beam.trajectories.options import ItemOptions
from rlds_beam.transforms import (
    ConvertToTrajectories,
    ReadFromRlds,
    ValidateEpisodes,
    WriteRejected,
    WriteToTrajectoryRecords,
)


def double_reward(episode):
    return episode.replace(steps={**episode.steps, "reward": 2 * episode.steps["reward"]})


def run(path, output, items=None, flags=(), shuffle=False, **options):
    with beam.Pipeline("FnApiRunner", PipelineOptions([*flags])) as root:
        read = ReadFromRlds(str(path))
        checked = root | read | ValidateEpisodes()
        accepted = checked.accepted | beam.Map(double_reward)
        if shuffle:
            accepted |= beam.Reshuffle()
        convert = ConvertToTrajectories(read.schema, items=items)
        written = (accepted | convert).items | WriteToTrajectoryRecords(str(output), convert.spec, **options)
        (checked.rejected, written.rejected) | beam.Flatten() | WriteRejected(str(output))


def rewards(output):
    found = []
    for shard in shard_paths(output):
        if shard.suffix != ".spec":
            found += [parse_example(p)["reward"].floats() for p in read_payloads(shard)]
    return sorted(map(tuple, np.round(found, 5).tolist()))


@pytest.fixture
def dataset(tmp_path):
    episodes = [make_episode(4, seed=i, breaks=["missing_is_last"] if i == 3 else []) for i in range(10)]
    path = write_dataset(tmp_path / "in", episodes, shards=3)
    pairs = [e.steps["reward"][[t, t + 1]] * 2 for i, e in enumerate(episodes) if i != 3 for t in range(3)]
    return path, sorted(map(tuple, np.round(pairs, 5).tolist())), episodes


@pytest.mark.parametrize(("flags", "shuffle"), [((), False), (("--direct_runner_bundle_repeat=1",), True)])
def test_the_output_equals_the_input(tmp_path, dataset, flags, shuffle):
    path, expected, _ = dataset
    output = tmp_path / "out"
    run(path, output, flags=flags, shuffle=shuffle)
    assert rewards(output) == expected
    manifest = read_manifest(str(output))
    assert manifest["items"] == 27
    assert not [p for p in output.rglob("*") if p.name.startswith("_parts") or p.suffix == ".tmp"]
    line = json.loads((output / "rejected" / "train-00000-of-00001.jsonl").read_text())
    assert line["rule"] == "missing_is_last"
    key = EpisodeKey.parse(line["key"])
    source = open_source(str(path))
    with open(source.splits[0].shards[key.shard].path, "rb") as shard:
        shard.seek(key.position + 12)
        payload = read_payloads(output / "rejected" / "train-00000-of-00001.tfrecord")[0]
        assert shard.read(len(payload)) == payload


def test_an_output_is_not_overwritten_unasked(tmp_path, dataset):
    path, expected, _ = dataset
    output = tmp_path / "out"
    run(path, output)
    with pytest.raises(UsageError, match="overwrite=True"):
        run(path, output)
    run(path, output, overwrite=True)
    assert rewards(output) == expected


def test_building_the_graph_removes_nothing(tmp_path, dataset):
    path, _, _ = dataset
    output = tmp_path / "out"
    run(path, output)
    before = {p: p.read_bytes() for p in output.rglob("*") if p.is_file()}
    pipeline = beam.Pipeline("FnApiRunner")
    episodes = (pipeline | ReadFromRlds(str(path)) | ValidateEpisodes()).accepted
    convert = ConvertToTrajectories(open_source(str(path)).schema, items=ItemOptions(items="frames"))
    (episodes | convert).items | WriteToTrajectoryRecords(str(output), convert.spec, overwrite=True)
    assert {p: p.read_bytes() for p in output.rglob("*") if p.is_file()} == before
    pipeline.run().wait_until_finish()
    assert read_manifest(str(output))["items"] == 36
