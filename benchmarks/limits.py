"""The machine's limit, in its own process: `python benchmarks/limits.py KIND DATASET CONVERTED`.

DATASET is the input and CONVERTED its conversion; this moves the same bytes.

- `state`: reads the input with both checksums and discards it; writes the output's bytes from memory, framed one by
  one with a call of `google_crc32c` and `file.write` each (`records`), or block by block in one buffer, as our encoder
  does (`blocks`). Nothing is parsed, checked, converted, or hashed.
- `images`: decodes every image and writes the output's bytes from memory, without checksums.

Prints JSON; rates are in input steps per second.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rlds_beam.encoding.base import Record
from rlds_beam.encoding.tfrecord.file import open_tfrecord, read_records
from rlds_beam.encoding.tfrecord.rows import FramedRows, frame
from rlds_beam.formats.inputs import open_source
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.reading.plan import plan_ranges
from rlds_beam.reading.reader import EpisodeReader

BLOCK = 1 << 18  # bytes framed at a time: what fits in a core's cache


def timed(function: Callable[..., Any], *args: Any) -> float:
    """Seconds."""
    began = time.perf_counter()
    function(*args)
    return time.perf_counter() - began


def shards(directory: Path) -> list[Path]:
    return sorted(path for path in directory.glob("*.tfrecord-*") if path.suffix != ".spec")


def read(directory: Path) -> int:
    """Reads every record with its checksums; returns their number."""
    count = 0
    for shard in shards(directory):
        with open_tfrecord(str(shard)).file as file:
            for record in read_records(file):
                assert isinstance(record, Record)
                count += 1
    return count


def read_payloads(converted: Path, count: int) -> np.ndarray[Any, Any]:
    """The first `count` records of a conversion (all of one size) as rows."""
    with open_tfrecord(str(shards(converted)[0])).file as file:
        records = [record.payload for _, record in zip(range(count), read_records(file), strict=False)]
    return np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1)


def write_blocks(output: Path, rows: np.ndarray[Any, Any], episodes: int) -> None:
    """Writes the records of an episode `episodes` times."""
    step = min(len(rows), max(1, BLOCK // rows.shape[1]))
    room = FramedRows(step, rows.shape[1])
    with open(output, "wb", buffering=0) as file:
        for _ in range(episodes):
            for first in range(0, len(rows), step):
                block = rows[first : first + step]
                room.payload[: len(block)] = block
                file.write(room.finish(len(block)).reshape(-1).data)


def write_records(output: Path, rows: np.ndarray[Any, Any], episodes: int) -> None:
    """Writes the same bytes record by record."""
    payloads = [row.tobytes() for row in rows]
    with open(output, "wb") as file:
        for _ in range(episodes):
            for payload in payloads:
                file.write(frame(payload))


def state(directory: Path, converted: Path, scratch: Path) -> dict[str, float]:
    episodes, steps = counts(converted)
    rows = read_payloads(converted, report(converted)["items_written"] // episodes)
    reading = timed(read, directory)
    records = timed(write_records, scratch, rows, episodes)
    scratch.unlink()
    blocks = timed(write_blocks, scratch, rows, episodes)
    return {"steps": steps, "blocks": steps / (reading + blocks), "records": steps / (reading + records)}


def images(directory: Path, converted: Path, scratch: Path) -> dict[str, float]:
    _, steps = counts(converted)
    encoded = images_of(directory)
    output = [shard.read_bytes() for shard in shards(converted)]
    decoding = timed(decode, encoded)
    writing = timed(write_bytes, scratch, output)
    return {
        "steps": steps,
        "images": sum(map(len, encoded)),
        "decode": steps / decoding,
        "best": steps / (decoding + writing),
    }


def images_of(directory: Path) -> list[EncodedImages]:
    """Every column of images in a dataset."""
    source = open_source(str(directory), None, None)
    reader = EpisodeReader(source)
    segments = [(work.split, segment) for work in plan_ranges(source) for segment in work.segments]
    episodes = (episode for split, segment in segments for episode in reader.read(split, segment))
    return [c for episode in episodes for c in episode.steps.values() if isinstance(c, EncodedImages)]


def decode(encoded: list[EncodedImages]) -> None:
    for column in encoded:
        column.decode()


def write_bytes(output: Path, chunks: list[bytes]) -> None:
    with open(output, "wb", buffering=0) as file:
        for chunk in chunks:
            file.write(chunk)


def report(converted: Path) -> dict[str, Any]:
    return dict(json.loads((converted / "report.json").read_text()))


def counts(converted: Path) -> tuple[int, int]:
    """(episodes, steps) of a conversion."""
    found = report(converted)
    return found["episodes"], found["steps"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("state", "images"))
    parser.add_argument("dataset", type=Path)
    parser.add_argument("converted", type=Path)
    args = parser.parse_args()
    scratch = args.converted.parent / f"limit-{os.getpid()}"
    try:
        print(json.dumps({"state": state, "images": images}[args.kind](args.dataset, args.converted, scratch)))
    finally:
        scratch.unlink(missing_ok=True)


if __name__ == "__main__":
    main()
