"""`rlds-beam push` fills tables with exactly the expected items."""

from __future__ import annotations

import collections
import json
from pathlib import Path
from typing import Any

import apache_beam as beam
import imagecodecs
import numpy as np
import pytest

pytest.importorskip("reverb")

import reverb
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.testing.util import assert_that, equal_to
from beam_runners import RUNNERS, new_pipeline, runner_flags
from servers import drain
from versions import make_shards, record

import rlds_beam
from rlds_beam.cli.main import main
from rlds_beam.episodes.episode import EpisodeKey
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.jobs.options import PushOptions
from rlds_beam.jobs.push import open_input
from rlds_beam.pipelines import rlds_to_reverb
from rlds_beam.reverb.pushers import EpisodePusher
from rlds_beam.testing import make_episode, read_items, read_rejected, write_dataset
from rlds_beam.trajectories.items import Items
from rlds_beam.transforms import ConvertToTrajectories, ReadFromRlds, ValidateEpisodes, WriteToReverb

STEPS, EPISODES = 12, 10
PAIRS = EPISODES * (STEPS - 1)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    episodes = [make_episode(STEPS, seed=i, observation={"b": 2, "a": 3}) for i in range(EPISODES)]
    return write_dataset(tmp_path_factory.mktemp("data"), episodes, shards=3)


@pytest.fixture
def server():
    """A server whose tables `t` and `u` return each item once, in order of insertion."""
    running = reverb.Server([_once("t"), _once("u")])
    yield f"127.0.0.1:{running.port}"
    running.stop()


def _once(name: str, max_size: int = 1_000_000, signature: Any = None) -> Any:
    selectors = reverb.selectors
    return reverb.Table(
        name,
        selectors.Fifo(),
        selectors.Fifo(),
        max_size,
        reverb.rate_limiters.MinSize(1),
        max_times_sampled=1,
        signature=signature,
    )


@pytest.fixture
def push(capsys, tmp_path):
    def run(source: Path | str, server: str, *flags: str, table: str = "t") -> tuple[int, dict[str, Any], str]:
        report = tmp_path / "push.json"
        report.unlink(missing_ok=True)
        code = main(["push", str(source), f"--reverb={server}", f"--table={table}", f"--report={report}", *flags])
        captured = capsys.readouterr()
        return code, json.loads(report.read_text()) if report.exists() else {}, captured.err or captured.out

    return run


def items_of(server: str, table: str = "t") -> collections.Counter[bytes]:
    """Removes and returns the items of a table as bytes."""
    return collections.Counter(b"".join(column.tobytes() for column in item.data) for item in drain(server, table))


def converted(data: Path | list[Path], output: Path, *flags: str) -> collections.Counter[bytes]:
    """The items that convert writes for the same input, as bytes in the order of a table's columns."""
    inputs = map(str, data if isinstance(data, list) else [data])
    assert main(["convert", *inputs, str(output), *flags]) in (0, 3)
    order = [field["path"] for field in json.loads((output / "manifest.json").read_text())["fields"]]
    return collections.Counter(
        b"".join(np.asarray(item[path]).tobytes() for path in order) for item in read_items(output)
    )


@pytest.mark.parametrize(
    "flags",
    [
        (),
        ("--items=sequences", "--sequence_length=5", "--pad_end_of_episodes", "--tile_end_of_episodes"),
        ("--items=sequences", "--sequence_length=5", "--stride_length=2", "--across_episodes"),
        ("--items=episodes",),
        ("--last_step=absorbing", "--chunk_length=1"),
    ],
)
def test_the_table_holds_what_convert_writes(push, server, data, tmp_path, flags) -> None:
    code, report, said = push(data, server, *flags)
    assert code == 0, said
    expected = converted(data, tmp_path / "out", *(f for f in flags if "chunk" not in f))
    assert report["items_written"] == report["items_predicted"] == expected.total()
    assert items_of(server) == expected


def test_images_are_pixels_in_the_table(push, server, tmp_path) -> None:
    episodes, frames = [], set()
    for seed in range(3):
        pixels = np.random.default_rng(seed).integers(0, 255, (STEPS, 4, 6, 3), np.uint8)
        frames |= {pixel.tobytes() for pixel in pixels}
        pngs = np.empty(STEPS, object)
        pngs[:] = [imagecodecs.png_encode(pixel) for pixel in pixels]
        columns = {"observation/image": EncodedImages(pngs, (4, 6, 3))}
        episodes.append(make_episode(STEPS, seed=seed, observation={"state": 3}, columns=columns))
    data = write_dataset(tmp_path / "data", episodes)
    flags = ("--items=sequences", "--sequence_length=4", "--pad_end_of_episodes", "--tile_end_of_episodes")
    code, _, said = push(data, server, *flags)
    assert code == 0, said
    items = drain(server, "t")
    assert len(items) == 3 * STEPS
    images = [image for item in items for image in item.data[1]]
    assert {image.tobytes() for image in images} == frames | {bytes(4 * 6 * 3)}


def test_a_dry_run_writes_nothing(push, server, data) -> None:
    code, _, said = push(data, server, "--dry_run")
    assert (code, "nothing was written" in said) == (0, True)
    assert "observation/a float32(3)" in " ".join(said.split())
    assert not items_of(server)
    code, _, said = push(data, server, "--dry_run", table="nope")
    assert (code, "no table 'nope'" in said) == (2, True)


def test_a_converted_dataset_is_pushed_unchanged(push, server, data, tmp_path, capsys) -> None:
    expected = converted(data, tmp_path / "out", "--items=sequences", "--sequence_length=3")
    code, _, said = push(tmp_path / "out", server)
    assert code == 0, said
    (line,) = (line for line in said.splitlines() if line.startswith("table "))
    assert "episode" not in line, "Reverb counts batches of converted items as episodes"
    assert items_of(server) == expected
    code, _, said = push(tmp_path / "out", server, "--items=episodes")
    assert (code, "is already converted" in said) == (2, True)


def test_pushing_again_writes_nothing_twice(push, server, data) -> None:
    for inserted in (PAIRS, 0):
        code, report, said = push(data, server)
        assert code == 0, said
        (table,) = report["tables"]
        assert (table["acknowledged"], table["inserted"], table["size"]) == (PAIRS, inserted, PAIRS)


def test_input_that_changes_during_a_push_is_noticed(push, server, tmp_path, monkeypatch) -> None:
    source = record(tmp_path / "data", 0)
    changed = make_shards(record(tmp_path / "other", 100))[0].read_bytes()
    push_range = EpisodePusher.push

    def change_and_push(*args: Any, **kwargs: Any) -> Any:
        make_shards(source)[0].write_bytes(changed)
        return push_range(*args, **kwargs)

    monkeypatch.setattr(EpisodePusher, "push", change_and_push)
    code, _, said = push(source, server, "--workers=1")
    assert code == 4 and make_shards(source)[0].name in said and "items of both versions" in said


def test_several_tables_and_servers(push, data, tmp_path) -> None:
    first, second = reverb.Server([_once("t"), _once("u")]), reverb.Server([_once("t"), _once("u")])
    servers = [f"127.0.0.1:{running.port}" for running in (first, second)]
    code, report, said = push(data, ",".join(servers), table="t,u")
    assert code == 0, said
    expected = converted(data, tmp_path / "out")
    held = {(server, table): items_of(server, table) for server in servers for table in "tu"}
    for table in "tu":
        assert held[servers[0], table] + held[servers[1], table] == expected
        assert all(held[server, table] for server in servers)
    assert report["items_written"] == 2 * PAIRS
    for running in (first, second):
        running.stop()


def test_bad_episodes_are_kept_and_the_rest_is_pushed(push, server, tmp_path) -> None:
    episodes = [make_episode(STEPS, seed=i, breaks=["missing_is_last"] if i == 4 else []) for i in range(EPISODES)]
    data = write_dataset(tmp_path / "data", episodes)
    code, report, _ = push(data, server, f"--rejected={tmp_path / 'kept'}")
    assert code == 3
    assert (report["rejected"], report["items_written"]) == (1, PAIRS - (STEPS - 1))
    ((line, _),) = read_rejected(tmp_path / "kept")
    assert line["rule"] == "missing_is_last"
    EpisodeKey.parse(line["key"])


@pytest.mark.parametrize(
    ("priority", "expected"), [("2.5", lambda item: 2.5), ("observation/progress", lambda item: item.data[3][0])]
)
def test_priorities(push, server, tmp_path, priority, expected) -> None:
    progress = {"observation/progress": np.linspace(0, 1, STEPS, dtype=np.float32)}
    episodes = [make_episode(STEPS, seed=i, observation={"b": 2, "a": 3}, columns=progress) for i in range(3)]
    data = write_dataset(tmp_path / "data", episodes)
    code, _, said = push(data, server, f"--priority={priority}")
    assert code == 0, said
    items = drain(server, "t")
    assert len(items) == 3 * (STEPS - 1)
    for item in items:
        assert item.info.priority == pytest.approx(expected(item), abs=1e-6)
    if priority != "2.5":
        assert len({item.info.priority for item in items}) == STEPS - 1


class TestObserverWriter:
    @pytest.mark.parametrize(
        "flags",
        [
            (),
            ("--items=sequences", "--sequence_length=5", "--pad_end_of_episodes", "--tile_end_of_episodes"),
            ("--items=sequences", "--sequence_length=5", "--stride_length=2", "--across_episodes"),
            (
                "--items=sequences",
                "--sequence_length=5",
                "--across_episodes",
                "--pad_end_of_episodes",
                "--tile_end_of_episodes",
            ),
            ("--items=episodes",),
            ("--items=episodes", "--max_sequence_length=5", "--bypass_partial_episodes", "--allow_empty"),
        ],
    )
    def test_writes_the_same_items(self, push, server, data, tmp_path, flags) -> None:
        code, report, said = push(data, server, "--writer=observer", "--priority=3", *flags)
        assert code == 0, said
        expected = converted(data, tmp_path / "out", *flags)
        assert report["items_written"] == expected.total()
        assert items_of(server) == expected

    def test_a_second_push_writes_items_twice(self, push, server, data) -> None:
        for size in (PAIRS, 2 * PAIRS):
            code, report, said = push(data, server, "--writer=observer")
            assert (code, report["tables"][0]["size"]) == (0, size), said

    def test_single_frames_have_a_time_axis(self, push, data) -> None:
        """Observers write a time axis; a table without one is refused before anything is sent."""
        import tensorflow as tf

        spec = open_input(PushOptions(str(data), reverb=("s:1",), table=("t",), items="frames")).spec.to_tf(
            per_frame=True
        )
        with_axis = tf.nest.map_structure(lambda leaf: tf.TensorSpec((1, *leaf.shape), leaf.dtype), spec)
        tables = {"without": spec, "with": with_axis, "any": None}
        running = reverb.Server([_once(name, signature=signature) for name, signature in tables.items()])
        server = f"127.0.0.1:{running.port}"
        code, _, said = push(data, server, "--writer=observer", "--items=frames", table="without")
        assert code == 2 and "'without' needs single frames without a time axis" in said and "--writer=stream" in said
        assert not drain(server, "without")
        for table in ("with", "any"):
            code, _, said = push(data, server, "--writer=observer", "--items=frames", table=table)
            assert (code, " B\n" in said) == (0, False), said
            assert [item.data[0].shape for item in drain(server, table)] == [(1,)] * STEPS * EPISODES
        code, report, said = push(data, server, "--items=frames", table="without")
        assert (code, report["items_written"]) == (0, STEPS * EPISODES), said
        running.stop()


class TestTransform:
    """`WriteToReverb` in a user's pipeline."""

    @pytest.mark.parametrize("writer", ["stream", "observer"])
    def test_writes_what_convert_writes(self, server, data, tmp_path, writer) -> None:
        with beam.Pipeline(runner=FnApiRunner(), options=PipelineOptions([])) as root:
            read = ReadFromRlds(str(data))
            checked = root | read | ValidateEpisodes()
            convert = ConvertToTrajectories(read.schema)
            result = (checked.accepted | convert).items | WriteToReverb(server, "t", convert.spec, writer=writer)
            result.written | beam.Map(_check_written)
        assert items_of(server) == converted(data, tmp_path / "out")

    @pytest.mark.parametrize("runner", RUNNERS)
    def test_rlds_to_reverb_writes_what_push_writes(self, server, tmp_path, push, runner) -> None:
        episodes = [make_episode(3 + i, seed=i, breaks=["missing_is_last"] if i == 2 else []) for i in range(5)]
        data = write_dataset(tmp_path / "in", episodes, shards=2)
        rejected = tmp_path / "rejected"
        rlds_to_reverb.main(
            [f"--input={data}", f"--reverb={server}", "--table=t", f"--rejected={rejected}", *runner_flags(runner)]
        )
        code, _, said = push(data, server, "--writer=observer", table="u")
        assert code == 3, said
        items = items_of(server)
        assert items.total() == 2 + 3 + 5 + 6
        assert items == items_of(server, "u")
        assert [line["rule"] for line, _ in read_rejected(rejected)] == ["missing_is_last"]

    @pytest.mark.parametrize("writer", ["stream", "observer"])
    def test_items_can_be_edited_before_they_are_written(self, server, data, writer) -> None:
        with new_pipeline() as root:
            read = ReadFromRlds(str(data))
            convert = ConvertToTrajectories(read.schema)
            converted = (root | read | ValidateEpisodes()).accepted | convert
            edited = converted.items | beam.Map(_with_zero_reward)
            written = (edited | WriteToReverb(server, "t", convert.spec, writer=writer)).written
            assert_that(written | beam.Map(lambda verified: verified.checks[0].size), equal_to([PAIRS]))
        order = [leaf.path for leaf in convert.spec.leaves]
        items = [dict(zip(order, item.data, strict=True)) for item in drain(server, "t")]
        assert len(items) == PAIRS and not any(item["reward"].any() for item in items)
        assert all(item["observation/a"].any() for item in items)


def _with_zero_reward(items: Items) -> Items:
    return items.with_columns({"reward": np.zeros_like(items.frames["reward"])})


def _check_written(verified: Any) -> None:
    (check,) = verified.checks
    assert (check.predicted, check.acknowledged, check.size) == (PAIRS, PAIRS, PAIRS)


def test_embedded(data) -> None:
    pushed = rlds_beam.push(data, reverb="embedded", table="replay,once:queue:1000", allow_blocking=True)
    assert {check.table: check.size for check in pushed.verified.checks} == {"replay": PAIRS, "once": PAIRS}
    said = str(pushed).splitlines()
    assert said[0].startswith("read ") and said[-1].startswith("ended ") and "--keep_serving" in said[-1]
    assert sum(line.startswith("table ") for line in said) == 2
