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
from small_datasets import minari_hdf5

from rlds_beam import storage
from rlds_beam.cli.main import main
from rlds_beam.errors import BadEpisode, UsageError
from rlds_beam.formats.lerobot.layout import fill_template
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


FOREIGN = [external_link, external_storage, virtual]
FIRST = {
    "minari": "episode_0/observations/state",
    "d4rl": "observations",
    "hdf5": "data/demo_1/actions",
}
FILES = {"minari": "data/main_data.hdf5", "d4rl": "d4rl.hdf5", "hdf5": "low_dim.hdf5"}


def hdf5_dataset(dataset: Path, directory: Path, kind: str) -> Path:
    """The dataset in an HDF5 format."""
    h5py = pytest.importorskip("h5py")
    if kind == "hdf5":
        robomimic(directory, [3, 3, 3])
        return directory
    if kind == "minari":
        minari_hdf5(directory)
        return directory
    directory.mkdir()
    with h5py.File(directory / FILES[kind], "w") as file:
        file["observations"], file["actions"] = np.ones((9, 3)), np.ones((9, 2))
        file["rewards"], file["terminals"] = np.ones(9), np.arange(9) % 3 == 2
    return directory


@pytest.mark.parametrize("kind", FIRST)
@pytest.mark.parametrize("foreign", FOREIGN, ids=[one.__name__ for one in FOREIGN])
def test_values_in_another_file_are_refused(dataset, tmp_path, capsys, kind, foreign):
    h5py = pytest.importorskip("h5py")
    path = hdf5_dataset(dataset, tmp_path / "h5", kind)
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["values"] = np.full((3, 3), 42.0)
    with h5py.File(path / FILES[kind], "r+") as file:
        del file[FIRST[kind]]
        foreign(h5py, file, FIRST[kind], tmp_path / "secret.h5")
    code = convert(path, tmp_path / "out", "--from=hdf5", "--to=rlds")
    out, err = capsys.readouterr()
    said = err or out
    assert code == (2 if "with values in another file" in err else 3), said
    if code == 3:  # the schema is known, so the episode is rejected
        rejected = next((tmp_path / "out" / "rejected").glob("*.jsonl")).read_text()
        assert "with values in another file" in rejected
        assert len(read_back(tmp_path / "out", "rlds")) == (1 if kind == "minari" else 2)
    else:
        assert (out, err.count("\n")) == ("", 1)
        assert str(path) in err
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", FIRST)
def test_soft_links_in_the_file_are_followed_and_loops_are_errors(dataset, tmp_path, capsys, kind):
    h5py = pytest.importorskip("h5py")
    path = hdf5_dataset(dataset, tmp_path / "h5", kind)
    column = {"hdf5": "action", "minari": "observation/state"}.get(kind, "observation")
    wanted = [episode.steps[column].tolist() for episode in read_back(path, "hdf5")]
    with h5py.File(path / FILES[kind], "r+") as file:
        file.move(FIRST[kind], "moved" if kind != "minari" else "episode_0/moved")
        file[FIRST[kind]] = h5py.SoftLink("/moved" if kind != "minari" else "/episode_0/moved")
    assert [episode.steps[column].tolist() for episode in read_back(path, "hdf5")] == wanted
    with h5py.File(path / FILES[kind], "r+") as file:
        del file[FIRST[kind]]
        file[FIRST[kind]] = h5py.SoftLink(f"/{FIRST[kind]}")
    assert convert(path, tmp_path / "out", "--from=hdf5", "--to=rlds") in (2, 3)
    assert "Traceback" not in capsys.readouterr().err


# LeRobot


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


def test_path_templates_of_lerobot_and_others():
    place = {"chunk_index": 1, "file_index": 20, "video_key": "c d"}
    for text in ("d/c-{chunk_index:03d}/f-{file_index:03d}.parquet", "{chunk_index}_{file_index:1d}", "{video_key}/1"):
        assert fill_template(text, place, "it") == text.format(**place)
    for number in ("../x", None, 1.5):
        with pytest.raises(UsageError, match=r"it is '\{chunk_index:03d\}'"):
            fill_template("{chunk_index:03d}", {"chunk_index": number}, "it")


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


@pytest.mark.parametrize("place", ["LICENSE", "a/LICENSE"])
def test_files_outside_a_dataset(tmp_path, place):
    path = tmp_path / "data" / place
    path.parent.mkdir(parents=True)
    (tmp_path / "data2").write_text("")
    for target, outside in {tmp_path / "data2": True, tmp_path / "data" / "x": False, "/": True}.items():
        path.symlink_to(target)
        assert storage.is_outside(str(tmp_path / "data"), place) is outside
        path.unlink()
    assert not storage.is_outside("s3://bucket/data", place)
