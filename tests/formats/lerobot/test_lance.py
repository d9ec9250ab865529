"""`convert --to=lerobot --storage=lance`, and LeRobot datasets stored as Lance as a source."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import lerobot_data as data
import numpy as np
import pyarrow as pa
import pytest
from appending import append
from directories import bytes_of
from memory_store import memory_store

import rlds_beam
from rlds_beam import storage
from rlds_beam.cli.main import main
from rlds_beam.errors import MissingExtraError, RldsBeamError, UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.formats.lerobot import layout
from rlds_beam.formats.lerobot.lance_output import write_data_file
from rlds_beam.jobs.convert import prepare
from rlds_beam.pipelines.convert import ConvertConfig
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.testing.conversions import check_error

lance = pytest.importorskip("lance")

NO_IMAGES = "-observation/image_0,-observation/depth"
OPTIONS: dict[str, Any] = {"storage": "lance", "shards": 3, "map": NO_IMAGES}


@pytest.fixture(scope="module")
def twin(source: tuple[str, list[Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset with Parquet files."""
    path = tmp_path_factory.mktemp("twin") / "out"
    data.convert_here(source[0], path, shards=3, map=NO_IMAGES)
    return path


@pytest.fixture(scope="module")
def stored(source: tuple[str, list[Any]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stored") / "out"
    data.convert_here(source[0], path, **OPTIONS)
    return path


@pytest.fixture(scope="module")
def moving(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A dataset with two cameras, as RLDS, and as videos with both kinds of storage."""
    pytest.importorskip("av")
    folder = tmp_path_factory.mktemp("moving")
    rlds, _ = data.write_moving_data(folder / "rlds")
    made = {"rlds": Path(rlds)}
    for kind in ("parquet", "lance"):
        made[kind] = folder / kind
        data.convert_here(rlds, made[kind], shards=2, images="video", gop=1, map="-observation/depth", storage=kind)
    return made


@pytest.fixture
def copy(stored: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(stored, tmp_path / "copy"))


def lasting(directory: Path) -> dict[str, bytes]:
    """The files that are equal on every run: all but the manifests of the tables."""
    return {name: content for name, content in bytes_of(directory).items() if "/_versions/" not in name}


def assert_same_episodes(path: Path, other: Path) -> None:
    found, wanted = (data.read_episodes(str(p), "lerobot") for p in (path, other))
    assert len(found) == len(wanted)
    for one, two in zip(found, wanted, strict=True):
        assert one.metadata.keys() == two.metadata.keys()
        assert list(one.steps) == list(two.steps)
        for name, column in one.steps.items():
            pair = [c.decode() if hasattr(c, "decode") else c for c in (column, two.steps[name])]
            np.testing.assert_array_equal(*pair, name)


def table_of(path: Path, name: str) -> Any:
    return lance.dataset(str(path / f"{name}.lance"))


def rewrite(path: Path, name: str, table: pa.Table, **options: Any) -> None:
    """Replaces a table, as another program would write it."""
    shutil.rmtree(path / f"{name}.lance")
    lance.write_dataset(table, str(path / f"{name}.lance"), **{"data_storage_version": "2.2", **options})


def refusal(path: Path) -> str:
    with pytest.raises(UsageError) as error:
        open_source(str(path), from_="lerobot")
    check_error(error.value)
    return str(error.value)


def test_the_rows_are_those_of_the_parquet_files(stored, twin):
    rows, wanted = table_of(stored, "frames").to_table(), data.frames(twin)
    assert rows.column_names == [name.replace(".", "_") for name in wanted.column_names]
    for name in wanted.column_names:
        values, expected = rows[name.replace(".", "_")].to_pylist(), wanted[name].to_pylist()
        if name == "observation.matrix":  # (2, 3): LeRobot reads a flat list
            expected = np.reshape(expected, (-1, 6)).tolist()
        assert values == expected, name
    assert rows.schema.field("observation_matrix").type == pa.list_(pa.float32(), 6)
    assert len(table_of(stored, "frames").get_fragments()) == len(list(twin.glob("data/*/*")))


def test_meta_is_that_of_the_parquet_files(stored, twin):
    assert {**data.meta(twin, "info"), "storage_format": "lance"} == data.meta(stored, "info")
    for name in ("meta/stats.json", "meta/episodes/chunk-000/file-000.parquet", "meta/tasks.parquet"):
        assert (stored / name).read_bytes() == (twin / name).read_bytes()
    rows = table_of(stored, "meta").to_table().to_pylist()
    files = {str(file.relative_to(stored / "meta")): file for file in (stored / "meta").rglob("*") if file.is_file()}
    assert {row["path"]: row["data"] for row in rows} == {name: file.read_bytes() for name, file in files.items()}
    assert "data_files" not in (stored / "README.md").read_text()
    assert not (stored / "data").exists() and not (stored / "_ranges").exists()


def test_it_is_read_back(stored, twin):
    assert_same_episodes(stored, twin)
    source = open_source(str(stored))
    assert (source.files.name, source.violations) == ("lance", ())
    assert source.schema == open_source(str(twin)).schema


def test_every_command_reads_it(stored, twin, tmp_path, capsys):
    assert main(["inspect", str(stored)]) == 0
    assert main(["stats", str(stored), "--progress=none"]) == 0
    assert "observation/state" in capsys.readouterr().out
    report = rlds_beam.validate(str(stored))
    assert report.valid == len(data.LENGTHS) - 1 and not report.rejected
    dataset, other = rlds_beam.open_dataset(str(stored)), rlds_beam.open_dataset(str(twin))
    assert len(dataset) == len(other) > 0
    for i in (0, len(dataset) // 2, len(dataset) - 1):
        assert dataset[i].keys() == other[i].keys()
        assert all(np.array_equal(value, other[i][name]) for name, value in dataset[i].items())
    data.convert_here(stored, tmp_path / "rlds", from_="lerobot", to="rlds")
    assert len(data.read_episodes(str(tmp_path / "rlds"), "rlds")) == len(data.LENGTHS) - 1


def test_it_resumes_at_any_point(source, stored, tmp_path):
    path = tmp_path / "out"
    job = prepare(ConvertConfig.create(source[0], str(path), to="lerobot", fps=data.FPS, **OPTIONS))
    for work in job.open():
        job.converter.convert_range(work, {})
    finisher = job.committer.finisher
    one, two, *_ = finisher.commits()
    parquet = {file: file.read_bytes() for file in (path / "_ranges").iterdir()}
    finisher.finish(*one)
    finisher.finish(*two)
    finisher.finish(*two)  # a runner may repeat it
    for file, content in parquet.items():  # killed before the first files of the range were removed
        file.write_bytes(content)
    (path / "frames.lance/data/.chunk-000-file-002.lance.01234567.tmp").write_bytes(b"half")
    (path / "frames.lance/data/chunk-000-file-002.lance").write_bytes(b"half")
    (path / "frames.lance/data/chunk-000-file-000.lance").unlink()  # lost: its range is converted again
    data.convert_here(source[0], path, **OPTIONS)
    assert lasting(path) == lasting(stored)
    assert table_of(path, "frames").to_table() == table_of(stored, "frames").to_table()
    again = prepare(ConvertConfig.create(source[0], str(path), to="lerobot", fps=data.FPS, **OPTIONS)).status()
    assert again.complete and not again.pending


def test_overwriting_removes_all_of_it(source, copy):
    data.convert_here(source[0], copy, shards=3, map=NO_IMAGES, overwrite=True)
    assert not list(copy.glob("*.lance"))


def test_a_range_without_an_episode_has_no_rows(tmp_path):
    episodes = [make_episode(4, seed=i, breaks=["missing_is_last"] if i < 2 else []) for i in range(4)]
    source, path = write_dataset(tmp_path, episodes, name="toy", shards=2), tmp_path / "out"
    data.convert_here(source, path, fps=5, shards=2, storage="lance")
    assert [file.name for file in path.glob("frames.lance/data/*")] == ["chunk-000-file-001.lance"]
    assert table_of(path, "frames").count_rows() == 8
    assert [len(e) for e in data.read_episodes(str(path), "lerobot")] == [4, 4]


def test_in_a_store(source, stored):
    with memory_store() as store:
        root = f"{store.root}/out"
        data.convert_here(source[0], root, **OPTIONS)
        written = {name.removeprefix(f"{root}/"): content for name, content in store.files.items()}
        assert {n: c for n, c in written.items() if "/_versions/" not in n} == lasting(stored)
        assert written.keys() == bytes_of(stored).keys()
        with pytest.raises(UsageError, match="Lance tables are read from local disks") as error:
            open_source(root, from_="lerobot")
        check_error(error.value)


def test_it_is_appended_to(tmp_path):
    episodes = [make_episode(3 + i % 4, seed=i, observation={"state": 3}) for i in range(12)]
    files = sorted(write_dataset(tmp_path / "data", episodes, shards=4).glob("*tfrecord-0*"))
    for path in files:
        os.utime(path, (1e9, 1e9))
    options = {"to": "lerobot", "fps": 10, "storage": "lance"}
    out, whole = tmp_path / "out", tmp_path / "whole"
    data.convert_here(",".join(map(str, files[:2])), out, **options)
    old = lasting(out)
    for last in (3, 4):
        append(files[:last], out, options)
    data.convert_here(",".join(map(str, files)), whole, **options)
    assert table_of(out, "frames").version == 3
    assert table_of(out, "frames").to_table() == table_of(whole, "frames").to_table()
    assert table_of(out, "frames").checkout_version(1).count_rows() == sum(map(len, episodes[:6]))
    assert all((out / name).read_bytes() == content for name, content in old.items() if ".lance/" in name)
    assert_same_episodes(out, whole)
    for name in ("meta/stats.json", "meta/info.json"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()
    rows = table_of(out, "meta").to_table().to_pylist()
    assert all((out / "meta" / row["path"]).read_bytes() == row["data"] for row in rows)
    assert {row["path"] for row in rows if row["path"].startswith("episodes")} == {
        f"episodes/chunk-000/file-00{i}.parquet" for i in range(3)
    }


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"map": "-observation/depth"}, r"LeRobot reads videos from Lance, but no images.*image_0: add --images=video"),
        ({"map": "-observation/image_0"}, r"no images.*depth: --depth makes videos of depth"),
        ({"map": f"{NO_IMAGES},a.b=observation/count,a_b=action"}, r"a_b and a\.b would be the same|a\.b and a_b"),
        ({"lerobot_version": "2.1", "map": NO_IMAGES}, "LeRobot 2.1 has only Parquet files"),
    ],
)
def test_what_it_cannot_hold_is_refused(source, tmp_path, options, message):
    with pytest.raises(UsageError, match=rf"--storage=lance: .*({message})") as error:
        prepare(ConvertConfig.create(source[0], str(tmp_path), to="lerobot", fps=10, storage="lance", **options))
    check_error(error.value)


def test_what_lance_cannot_write_is_an_error_with_the_file(stored, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    for name, error in (("file/x.lance", FileExistsError), ("a\nb.lance", RldsBeamError)):
        with pytest.raises(error, match=r"x\.lance|cannot write .*b\.lance"):
            write_data_file(str(tmp_path / name), pa.schema([("a", pa.int64())]), ())


def test_it_needs_an_extra(source, stored, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "lance", None)
    for task in (
        lambda: prepare(ConvertConfig.create(source[0], str(tmp_path), to="lerobot", fps=10, **OPTIONS)),
        lambda: open_source(str(stored), from_="lerobot"),
    ):
        with pytest.raises(MissingExtraError, match=r"Lance need pylance.*pip install '[\w.-]*\[lance\]"):
            task()


# Videos


def test_videos_are_those_of_the_parquet_twin(moving):
    videos = {str(path): path.read_bytes() for path in sorted(moving["parquet"].glob("videos/*/*/*.mp4"))}
    blobs = [path.read_bytes() for path in sorted(moving["lance"].glob("videos.lance/data/*/*.blob"))]
    assert sorted(blobs) == sorted(videos.values())
    rows = table_of(moving["lance"], "videos")
    for i, row in enumerate(rows.to_table().to_pylist()):
        path = layout.VIDEO_PATH.format(**{name: row[name] for name in ("video_key", "chunk_index", "file_index")})
        content = (moving["parquet"] / path).read_bytes()
        assert rows.take_blobs("video_bytes", indices=[i])[0].read() == content
        assert row["file_size"] == len(content)
        moov = content[row["moov_offset"] :][: row["moov_size"]]
        assert (moov[4:8], int.from_bytes(moov[:4], "big")) == (b"moov", len(moov))
        assert row["kf_indices"] == list(range(len(row["kf_positions"])))
    assert_same_episodes(moving["lance"], moving["parquet"])


@pytest.mark.parametrize("threshold", [None, 0, 1])
def test_videos_are_read_wherever_the_table_has_them(moving, tmp_path, threshold):
    """In the data file (the default for short ones), several in a file, and each in its own."""
    path = Path(shutil.copytree(moving["lance"], tmp_path / "copy"))
    table = table_of(path, "videos")
    rows = table.to_table(columns=["video_key", "chunk_index", "file_index", "file_size"])
    contents = [blob.read() for blob in table.take_blobs("video_bytes", indices=list(range(rows.num_rows)))]
    options = {} if threshold is None else {("inline" if not threshold else "dedicated") + "_size_threshold": threshold}
    field = lance.blob.blob_field("video_bytes", **options)
    rewrite(path, "videos", rows.append_column(field, lance.blob.blob_array(contents)))
    kinds = {blob["kind"] for blob in table_of(path, "videos").to_table()["video_bytes"].to_pylist()}
    assert kinds == {{None: 0, 0: 1, 1: 2}[threshold]}
    assert_same_episodes(path, moving["parquet"])
    data.convert_here(path, tmp_path / "again", from_="lerobot", shards=2)
    videos = [sorted(at.glob("videos/*/*/*.mp4")) for at in (tmp_path / "again", moving["parquet"])]
    assert [len(list(v)) for v in videos] == [4, 4]
    assert_same_episodes(tmp_path / "again", moving["parquet"])  # their packets were copied


def test_lost_and_damaged_videos_cost_their_episodes(moving, tmp_path):
    path = Path(shutil.copytree(moving["lance"], tmp_path / "copy"))
    first, *_, last = sorted(path.glob("videos.lance/data/*/*.blob"))
    first.write_bytes(first.read_bytes()[:300])
    last.unlink()
    report = data.convert_here(path, tmp_path / "rlds", from_="lerobot", to="rlds")
    assert (report.valid, report.rejected) == (0, 5)


def test_videos_outside_of_the_table_are_refused(moving, tmp_path):
    path = Path(shutil.copytree(moving["lance"], tmp_path / "copy"))
    rows = table_of(path, "videos").to_table(columns=["video_key", "chunk_index", "file_index"])
    secret = tmp_path / "secret.mp4"
    secret.write_bytes(b"secret")
    blobs = lance.blob.blob_array([lance.blob.Blob.from_uri(f"file://{secret}")] * rows.num_rows)
    table = rows.append_column(lance.blob.blob_field("video_bytes"), blobs)
    rewrite(path, "videos", table, allow_external_blob_outside_bases=True)
    assert "videos.lance is damaged: a video is outside of it" in refusal(path)
    rewrite(path, "videos", table.slice(0, 2), external_blob_mode="ingest")
    assert "videos.lance has no video ('observation.images." in refusal(path)


# What others wrote, or damaged


def test_a_table_of_another_program(copy, twin):
    """In several commits, with a new column and removed rows; texts in lists."""
    rows = table_of(copy, "frames").to_table()
    rewrite(copy, "frames", rows.slice(0, 7), data_storage_version="2.1")
    for start in (7, 30):
        lance.write_dataset(rows.slice(start, 23 if start == 7 else None), str(copy / "frames.lance"), mode="append")
    table = table_of(copy, "frames")
    table.add_columns({"embedding": "index * 2"})
    lance.write_dataset(rows.slice(0, 1), str(copy / "frames.lance"), mode="append")
    table = table_of(copy, "frames")
    table.delete(f"_rowid >= {3 << 32}")
    assert table_of(copy, "frames").count_rows() == rows.num_rows
    assert_same_episodes(copy, twin)


@pytest.mark.parametrize("lost", [False, True])
def test_wrong_rows_cost_their_episodes(copy, tmp_path, lost):
    rows = table_of(copy, "frames").to_table()
    last = rows.slice(0, rows.num_rows - 1)
    rewrite(copy, "frames", last if lost else pa.concat_tables([rows.slice(1), rows.slice(0, 1)]))
    report = data.convert_here(copy, tmp_path / "out", from_="lerobot", to="rlds")
    assert report.rejected == (1 if lost else len(data.LENGTHS) - 1)
    assert lost or "not those of episode" in str(report.to_json())


@pytest.mark.parametrize("change", ["table", "column", "manifest", "version"])
def test_damaged_tables_are_refused_in_one_line(copy, change):
    rows = table_of(copy, "frames").to_table()
    if change == "table":
        shutil.rmtree(copy / "frames.lance")
        assert "frames.lance is missing" in refusal(copy)
    elif change == "column":
        rewrite(copy, "frames", rows.drop_columns(["action"]))
        assert "frames.lance has no column action" in refusal(copy)
    elif change == "manifest":
        (manifest,) = (copy / "frames.lance/_versions").iterdir()
        manifest.write_bytes(manifest.read_bytes()[:100])
        assert "frames.lance is damaged" in refusal(copy)
    else:
        (copy / "meta/info.json").write_text(json.dumps(data.meta(copy, "info") | {"codebase_version": "v2.1"}))
        assert "as Lance, only v3.0 is read" in refusal(copy)


def test_files_outside_of_a_table_are_refused(copy, tmp_path):
    file = copy / "frames.lance/data/chunk-000-file-001.lance"
    shutil.move(file, tmp_path / "elsewhere.lance")
    file.symlink_to(tmp_path / "elsewhere.lance")
    assert "its data file 'chunk-000-file-001.lance' is outside of it" in refusal(copy)
    schema = table_of(copy, "frames").schema
    fragment = json.loads(json.dumps(table_of(copy, "frames").get_fragments()[0].metadata.to_json()))
    fragment["files"][0]["path"] = "../../../elsewhere.lance"
    shutil.rmtree(copy / "frames.lance/_versions")
    operation = lance.LanceOperation.Overwrite(schema, [lance.FragmentMetadata.from_json(json.dumps(fragment))])
    lance.LanceDataset.commit(str(copy / "frames.lance"), operation)
    assert "its data file '../../../elsewhere.lance' is outside of it" in refusal(copy)


def test_wide_rows_are_not_read(copy):
    width = 1 << 30
    schema = pa.schema([pa.field(f.name, pa.list_(pa.float32(), width) if f.name == "action" else f.type) for f in
                        table_of(copy, "frames").schema])  # fmt: skip
    fragments = [fragment.metadata for fragment in table_of(copy, "frames").get_fragments()]
    shutil.rmtree(copy / "frames.lance/_versions")
    try:
        lance.LanceDataset.commit(str(copy / "frames.lance"), lance.LanceOperation.Overwrite(schema, fragments))
    except (OSError, OverflowError, ValueError):
        pytest.skip("this version of Lance does not write such a schema")
    report = rlds_beam.validate(str(copy))
    assert report.rejected == len(data.LENGTHS) - 1


@pytest.mark.parametrize("name", ["frames.lance/data/*.lance", "frames.lance/_versions/*"])
def test_damage_never_ends_in_a_traceback(copy, tmp_path, name):
    (file, *_) = sorted(copy.glob(name))
    content, rng = file.read_bytes(), np.random.default_rng(0)
    for i in range(25):
        damaged = bytearray(content)
        for at in rng.integers(0, len(content), 1 + i % 3):
            damaged[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(damaged if i % 5 else damaged[: int(rng.integers(len(content)))])
        try:
            episodes = _read(copy)
        except UsageError as error:
            check_error(error)
            continue
        assert all("\n" not in fault.detail for e in episodes for fault in e.faults)


def _read(path: Path) -> list[Any]:
    from rlds_beam.reading.plan import plan_ranges
    from rlds_beam.reading.reader import EpisodeReader

    source = open_source(str(path), from_="lerobot")
    reader = EpisodeReader(source)
    return [e for work in plan_ranges(source) for s in work.segments for e in reader.read(work.split, s)]


def test_a_part_of_a_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    part = storage.part(str(path), 10, 30)
    assert storage.exists(part) and storage.size(part) == 20
    assert storage.stamp(part) == storage.stamp(str(path))
    with storage.open_read(part) as file:
        assert file.read(5) == bytes(range(10, 15))
        assert file.seek(-3, os.SEEK_END) == 17 and file.read() == bytes(range(27, 30))
        assert file.seek(50) == 50 and file.read(1) == b""
    assert storage.size(storage.part(str(path), 90, 1000)) == 10
    assert not storage.exists(storage.part(str(tmp_path / "none"), 0, 1))
