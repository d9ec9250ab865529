"""The loaders of `run.py remote`, which read from the bucket in BENCHMARK_BUCKET; and the data of WebDataset.

    python benchmarks/peers/loading_remote.py FOLDER

writes FOLDER/webdataset from FOLDER/frames.npz.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import tarfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from loading_data import BATCH, CAMERA, STATE, Frames, Sample, load

Batch = dict[str, Any]
BUCKET = os.environ.get("BENCHMARK_BUCKET", "")
SHARD_BYTES = 8 << 20
"""Bytes of a file of WebDataset: as many files as cores and workers can use."""


def counts() -> dict[str, int]:
    """The requests and bytes that the server has sent so far; none without a bucket."""
    if not BUCKET:
        return {"requests": 0, "bytes": 0}
    with urllib.request.urlopen(f"{os.environ['AWS_ENDPOINT_URL']}/_counts", timeout=60) as answer:
        found: dict[str, int] = json.load(answer)
        return found


def batches(name: str) -> Any:
    """`Dataset.batches`."""

    def read(folder: Path, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
        from rlds_beam import open_dataset

        dataset = open_dataset(f"{BUCKET}/{name}", unit="steps")
        for batch in dataset.batches(BATCH, shuffle=True, threads=workers, epochs=None, drop_last=True):
            yield {"image": batch[CAMERA], "state": batch[STATE], "action": batch["action"]}

    return read


def lance_images(folder: Path, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
    """lerobot-lancedb's dataset of JPEGs, with its metadata on this machine."""
    from lerobot_lancedb import LeRobotLanceDataset
    from loading_torch import _batches

    where, options = f"{BUCKET}/lance_images", {"region": "us-east-1", "virtual_hosted_style_request": "false"}
    dataset = LeRobotLanceDataset(
        uri=where, meta_root=folder / "lance_images", table_name="name", connect_kwargs={"storage_options": options}
    )
    return _batches(dataset, frames, sample, workers)


def webdataset(folder: Path, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
    """WebDataset: reads tar files from start to end, and shuffles within a buffer."""
    import webdataset as wds

    names = sorted(path.name for path in (folder / "webdataset").iterdir())
    where = f"{os.environ['AWS_ENDPOINT_URL']}/{BUCKET.removeprefix('s3://')}/webdataset"
    pipeline = wds.WebDataset(
        [f"pipe:curl -s -f {where}/{name}" for name in names], shardshuffle=len(names), seed=0, empty_check=False
    )
    pipeline = pipeline.shuffle(1000).map(lambda row: _decode({"image": row["jpg"], "rest": row["bin"]}))
    return _forever(pipeline, workers, drop_last=True)


def _decode(row: Batch) -> Batch:
    import simplejpeg

    rest = np.frombuffer(row["rest"], np.float32).copy()
    image = simplejpeg.decode_jpeg(row["image"], fastdct=True)
    return {"image": image, "state": rest[: len(rest) // 2], "action": rest[len(rest) // 2 :]}


def _forever(dataset: Any, workers: int, **options: Any) -> Iterator[Batch]:
    from torch.utils.data import DataLoader

    while True:
        for batch in DataLoader(dataset, BATCH, num_workers=workers, **options):
            if len(batch["action"]) == BATCH:
                yield batch


def _rest(frames: Frames, number: int) -> bytes:
    """The state and the action of a frame."""
    return bytes(np.concatenate([frames.state[number], frames.action[number]]).astype(np.float32).tobytes())


def write_webdataset(folder: Path, frames: Frames) -> None:
    (folder / "webdataset").mkdir()
    tar: tarfile.TarFile | None = None
    for i in range(len(frames.action)):
        if tar is None or tar.offset > SHARD_BYTES:
            if tar is not None:
                tar.close()
            tar = tarfile.open(folder / "webdataset" / f"{i:08d}.tar", "w")  # noqa: SIM115
        for name, data in ((f"{i:08d}.jpg", frames.jpeg(i)), (f"{i:08d}.bin", _rest(frames, i))):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
    if tar is not None:
        tar.close()


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    args = parser.parse_args()
    shutil.rmtree(args.folder / "webdataset", ignore_errors=True)
    write_webdataset(args.folder, load(args.folder))


if __name__ == "__main__":
    main()
