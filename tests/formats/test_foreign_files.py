"""Crafted datasets cannot read files outside their directory, or copy them into an output."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exchanging import export, read_back
from hdf5_robots import robomimic
from lerobot_data import images, robot_episode

from rlds_beam.cli.main import main
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.formats.inputs import open_source
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.images.video_frames import video_frames
from rlds_beam.testing import make_episode, write_dataset

SECRET = b"the secret of another project"


@pytest.fixture
def dataset(tmp_path: Path) -> Path:
    return write_dataset(tmp_path / "data", [make_episode(4, seed=i, observation=3) for i in range(3)])


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def convert(source: Path, output: Path, *flags: str) -> int:
    return main(["convert", str(source), str(output), "--workers=1", *flags])


# HDF5


def external_link(h5py: Any, file: Any, name: str, secret: Path) -> None:
    file[name] = h5py.ExternalLink(str(secret), "/values")


def external_storage(h5py: Any, file: Any, name: str, secret: Path) -> None:
    raw = secret.with_suffix(".raw")
    raw.write_bytes(np.arange(300.0).tobytes())
    file.create_dataset(name, (3, 3), "f8", external=[(str(raw), 0, 72)])


def virtual(h5py: Any, file: Any, name: str, secret: Path) -> None:
    layout = h5py.VirtualLayout((3, 3), "f8")
    layout[:] = h5py.VirtualSource(str(secret), "values", (3, 3))
    file.create_virtual_dataset(name, layout)


@pytest.mark.parametrize("foreign", [external_link, external_storage, virtual])
def test_values_in_another_file_are_refused(tmp_path, foreign):
    h5py = pytest.importorskip("h5py")
    robomimic(tmp_path / "h5", [3, 3, 3])
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["values"] = np.full((3, 3), 42.0)
    with h5py.File(tmp_path / "h5" / "low_dim.hdf5", "r+") as file:
        del file["data/demo_1/actions"]
        foreign(h5py, file, "data/demo_1/actions", tmp_path / "secret.h5")
    assert convert(tmp_path / "h5", tmp_path / "out", "--from=hdf5", "--to=rlds") == 3
    rejected = next((tmp_path / "out" / "rejected").glob("*.jsonl")).read_text()
    assert "with values in another file" in rejected
    assert len(read_back(tmp_path / "out", "rlds")) == 2


# LeRobot


def test_episodes_of_lerobot_that_are_there_twice_are_rejected(dataset, tmp_path):
    import pyarrow as pa
    from pyarrow import parquet

    export(dataset, tmp_path / "lerobot", "lerobot", fps=10)
    (file, *_) = sorted((tmp_path / "lerobot").glob("data/*/*.parquet"))
    table = parquet.read_table(file)
    parquet.write_table(pa.concat_tables([table, table]), file)
    details = [fault.detail for one in read_back(tmp_path / "lerobot", "lerobot") for fault in one.faults]
    assert len(details) == 3 and all("are in several places" in detail for detail in details)


TEMPLATES = [
    "../secret/file-{file_index:03d}.parquet",
    "/{secret}/file-000.parquet",
    "data/{chunk_index.__class__}.parquet",
    "data/{chunk_index:01000000000d}.parquet",
    "s3://bucket/{file_index}.parquet",
]


@pytest.mark.parametrize("version", ["3.0", "2.1"])
@pytest.mark.parametrize("template", TEMPLATES)
def test_a_data_path_outside_the_dataset_is_refused(dataset, tmp_path, capsys, template, version):
    export(dataset, tmp_path / "lerobot", "lerobot", fps=10, lerobot_version=version)
    shutil.copytree(tmp_path / "lerobot" / "data" / "chunk-000", tmp_path / "secret")
    names = ("episode_chunk", "episode_index") if version == "2.1" else ("chunk_index", "file_index")
    template = template.replace("/{secret}", str(tmp_path / "secret"))
    template = template.replace("chunk_index", names[0]).replace("file_index", names[1])
    edit(tmp_path / "lerobot" / "meta" / "info.json", data_path=template)
    code = convert(tmp_path / "lerobot", tmp_path / "out", "--from=lerobot", "--to=rlds")
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "meta/info.json: data_path is" in err
    assert len(err) < 1000


@pytest.mark.parametrize("version", ["3.0", "2.1"])
@pytest.mark.parametrize("key", ["..", "a/../../../secret", "/secret"])
def test_a_video_key_that_is_a_path_is_refused(tmp_path, capsys, version, key):
    pytest.importorskip("av")
    camera = images(encode_jpeg(np.zeros((4, 32, 32, 3), np.uint8)), (32, 32, 3))
    episode = robot_episode(4)
    steps = {name: column for name, column in episode.steps.items() if "image" not in name and "depth" not in name}
    path = write_dataset(tmp_path, [episode.replace(steps={**steps, "observation/images/top": camera})])
    export(path, tmp_path / "lerobot", "lerobot", fps=10, lerobot_version=version, images="video")
    info = tmp_path / "lerobot" / "meta" / "info.json"
    content = json.loads(info.read_text())
    features = {key if name.endswith("top") else name: one for name, one in content["features"].items()}
    edit(info, features=features)
    assert convert(tmp_path / "lerobot", tmp_path / "out", "--from=lerobot", "--to=rlds") == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    if version == "2.1":  # the table of episodes in v3.0 has no such column
        assert "meta/info.json: video_path is" in err


PLAYLISTS = {
    "ffconcat": "ffconcat version 1.0\nfile 'secret.mp4'\n",
    "HLS": "#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:0.5,\nfile:///{secret}\n#EXT-X-ENDLIST\n",
}


@pytest.mark.parametrize("kind", PLAYLISTS)
def test_a_video_that_is_a_playlist_of_other_files_is_refused(tmp_path, monkeypatch, kind):
    av = pytest.importorskip("av")
    for name, muxer in (("secret.mp4", "mp4"), ("secret.ts", "mpegts")):
        with av.open(str(tmp_path / name), "w", format=muxer) as container:
            stream = container.add_stream("mpeg4", 10)
            stream.width = stream.height = 32
            stream.pix_fmt = "yuv420p"
            for _ in range(3):
                container.mux(stream.encode(av.VideoFrame.from_ndarray(np.zeros((32, 32, 3), np.uint8), "rgb24")))
            container.mux(stream.encode())
    path = tmp_path / "file-000.mp4"
    field: Any = ("observation/top", (32, 32, 3), "uint8", "png")
    path.write_text(PLAYLISTS[kind].replace("{secret}", str(tmp_path / "secret.ts")))
    monkeypatch.chdir(tmp_path)
    assert len(video_frames("secret.mp4", 0.0, 10, 3, *field).data) == 3
    with pytest.raises(BadEpisode, match=r"file-000\.mp4 cannot be read"):
        video_frames(str(path), 0.0, 10, 3, *field)


@pytest.mark.parametrize("template", ["../{DATASET}", "/{SPLIT}", "{DATASET}/{SPLIT}", "{DATASET.__class__}", ".."])
def test_a_template_of_tfds_is_in_its_directory(dataset, tmp_path, capsys, template):
    info = json.loads((dataset / "dataset_info.json").read_text())
    info["splits"][0]["filepathTemplate"] = template
    (dataset / "dataset_info.json").write_text(json.dumps(info))
    assert convert(dataset, tmp_path / "out") == 2
    assert "filepathTemplate of train is" in capsys.readouterr().err


def test_shapes_are_bounded(dataset):
    path = dataset / "features.json"
    features = json.loads(path.read_text())
    steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    steps["observation"]["tensor"]["shape"] = {"dimensions": [str(10**12)]}
    path.write_text(json.dumps(features))
    with pytest.raises(
        UsageError, match=r"observation: float32\(1000000000000\) is too large: the limit for a step is 256"
    ):
        open_source(str(dataset))


def test_texts_are_copied_in_any_encoding(dataset, tmp_path):
    """They are licenses and class names, which are not parsed."""
    texts = {"LICENSE": b"Universit\xe4t\n", "language.labels.txt": b"pick\n\xff\n"}
    for name, content in texts.items():
        (dataset / name).write_bytes(content)
    export(dataset, tmp_path / "out", "rlds")
    (made,) = {path.parent for path in (tmp_path / "out").rglob("features.json")}
    assert {name: (made / name).read_bytes() for name in texts} == texts


# Links


COPIED = ["LICENSE", "NOTICE.txt", "steps.labels.txt", "provenance.json", "features.json", "dataset_info.json"]


def moved(path: Path, elsewhere: Path) -> None:
    """Replaces a file with a link."""
    elsewhere.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.write_text(json.dumps({"secret": SECRET.decode()}))
    path.rename(elsewhere)
    path.symlink_to(os.path.relpath(elsewhere, path.parent))


@pytest.mark.parametrize("name", COPIED)
def test_no_file_is_copied_into_an_output_through_a_link(dataset, tmp_path, capsys, name):
    moved(dataset / name, tmp_path / "home" / "secret")
    code = convert(dataset, tmp_path / "out", "--to=rlds")
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert f"--to=rlds copies {name} into the output" in err
    assert not (tmp_path / "out").exists()
    assert convert(dataset, tmp_path / "numpy", "--to=numpy") == 0  # it copies no files
    found = b"".join(path.read_bytes() for path in (tmp_path / "numpy").rglob("*") if path.is_file())
    assert SECRET not in found


def test_a_link_to_a_file_of_the_dataset_is_copied(dataset, tmp_path):
    (dataset / "legal").mkdir()
    (dataset / "legal" / "text").write_text("MIT")
    (dataset / "LICENSE").symlink_to("legal/text")
    (tmp_path / "link").symlink_to(dataset)  # the dataset itself may be a link
    assert convert(tmp_path / "link", tmp_path / "out", "--to=rlds") == 0
    assert (tmp_path / "out" / "LICENSE").read_text() == "MIT"
    assert not (tmp_path / "out" / "LICENSE").is_symlink()


def in_hub_cache(source: Path, hub: Path) -> Path:
    """A dataset as `huggingface_hub` keeps it: each file is a link into `blobs`."""
    snapshot = hub / "datasets--me--x" / "snapshots" / "0f5a"
    for i, path in enumerate(sorted(path for path in source.rglob("*") if path.is_file())):
        link = snapshot / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        blob = hub / "datasets--me--x" / "blobs" / f"{i:040x}"
        blob.parent.mkdir(exist_ok=True)
        shutil.copy(path, blob)
        link.symlink_to(os.path.relpath(blob, link.parent))
    return snapshot


def test_the_cache_of_the_hugging_face_hub_is_read(dataset, tmp_path):
    (dataset / "LICENSE").write_text("MIT")
    snapshot = in_hub_cache(dataset, tmp_path / "hub")
    assert convert(snapshot, tmp_path / "out", "--to=rlds") == 0
    assert (tmp_path / "out" / "LICENSE").read_text() == "MIT"
    for kind, options in {"lerobot": {"fps": 10}, "zarr": {}}.items():
        export(dataset, tmp_path / kind, kind, **options)
        found = read_back(in_hub_cache(tmp_path / kind, tmp_path / f"hub-{kind}"), kind)
        assert [len(episode) for episode in found] == [4, 4, 4]
        assert not any(episode.faults for episode in found)
    (tmp_path / "secret").write_bytes(SECRET)
    (snapshot / "LICENSE").unlink()
    (snapshot / "LICENSE").symlink_to(tmp_path / "secret")
    assert convert(snapshot, tmp_path / "other", "--to=rlds") == 2
