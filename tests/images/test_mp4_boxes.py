"""An MP4 whose tables claim more than the file can hold is refused before FFmpeg reads them."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cases import cases

from rlds_beam.images.mp4_boxes import check_tables
from rlds_beam.images.videos import Video

COUNT, SIDE = 30, 64
HOLDING = (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"edts", b"moof", b"traf", b"mvex")
FRAGMENTED = {"movflags": "frag_keyframe+empty_moov+default_base_moof"}
KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "mp4": ("mp4", {}),
    "fast start": ("mp4", {"movflags": "faststart"}),
    "fragmented": ("mp4", FRAGMENTED),
    "mov": ("mov", {}),
    "matroska": ("matroska", {}),
}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    av = pytest.importorskip("av")
    path = tmp_path_factory.mktemp("videos")
    for name, (kind, options) in KINDS.items():
        with av.open(str(path / name), "w", format=kind, options=options) as container:
            stream = container.add_stream("libx264", 30)
            stream.width = stream.height = SIDE
            stream.pix_fmt = "yuv420p"
            stream.time_base = Fraction(1, 30)
            for i in range(COUNT):
                frame = av.VideoFrame.from_ndarray(np.full((SIDE, SIDE, 3), i, np.uint8), "rgb24")
                frame.pts = i
                container.mux(stream.encode(frame))
            container.mux(stream.encode())
    return path


def rebuilt(content: bytes, change: Callable[[bytes, bytes], bytes]) -> bytes:
    """The boxes of a file, with changed contents."""
    boxes, at = b"", 0
    while at + 8 <= len(content):
        size, name = struct.unpack_from(">I4s", content, at)
        inner = content[at + 8 : at + size]
        inner = rebuilt(inner, change) if name in HOLDING else change(name, inner)
        boxes += struct.pack(">I4s", len(inner) + 8, name) + inner
        at += size
    return boxes


@pytest.mark.parametrize("kind", KINDS)
def test_videos_pass(directory: Path, kind: str) -> None:
    video = Video.of(str(directory / kind))
    assert len(video) == COUNT and [number for number, _ in video.decode(np.arange(3))] == [0, 1, 2]


def table(*numbers: int) -> bytes:
    return struct.pack(f">{len(numbers)}I", *numbers)


MANY = 50_000_000
CLAIMS: dict[str, tuple[str, bytes, bytes, str]] = {
    "samples of a byte": ("mp4", b"stsz", table(0, 1, MANY), "it claims 50,000,000 samples of 1 bytes"),
    "large samples": ("mp4", b"stsz", table(0, 1 << 20, COUNT), "it claims 30 samples of 1,048,576 bytes"),
    "sizes": ("mp4", b"stsz", table(0, 0, MANY, 5, 5), "its table stsz claims 50,000,000 entries in 8 bytes"),
    "chunks": ("mp4", b"stco", table(0, MANY, 5), "its table stco claims 50,000,000 entries in 4 bytes"),
    "samples in a chunk": ("mp4", b"stsc", table(0, 1, 1, MANY, 1), "it claims 50,000,000 samples in chunks"),
    "edits": ("mp4", b"elst", table(0, 1000) + table(900, 0, 65536) * 1000, "1,000 edits of 30 samples"),
    "fragment": ("fragmented", b"trun", table(0, MANY), "it claims 50,000,000 samples, but has"),
    "sizes in a fragment": ("fragmented", b"trun", table(0x200, MANY, 5), "its table trun claims 50,000,000 entries"),
    "a table in the codec": ("mp4", b"stsd", table(0, 1, 20) + b"stsz" + table(0, 1, MANY), "holds a box stsz"),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_claims(directory: Path, tmp_path: Path, claim: str) -> None:
    kind, name, contents, said = CLAIMS[claim]
    changed = rebuilt((directory / kind).read_bytes(), lambda box, inner: contents if box == name else inner)
    (tmp_path / "x.mp4").write_bytes(changed)
    with pytest.raises(ValueError, match=said):
        Video.of(str(tmp_path / "x.mp4"))


def test_compressed_and_deep_boxes() -> None:
    def boxed(name: bytes, inner: bytes) -> bytes:
        return struct.pack(">I4s", len(inner) + 8, name) + inner

    deep: bytes = b""
    for _ in range(40):
        deep = boxed(b"moov", deep)
    for content, said in (
        (boxed(b"moov", boxed(b"cmov", b"x" * 20)), "its tables are compressed"),
        (deep, "more than 16 deep"),
        (boxed(b"free", boxed(b"mvhd", b"") + boxed(b"stsz", table(0, 1, MANY))), "it claims 50,000,000 samples"),
        (struct.pack(">I4sQ", 1, b"moov", 48) + boxed(b"stsz", table(0, 1, MANY, 0, 0)), "it claims 50,000,000"),
        (struct.pack(">I4s", 0, b"moov") + boxed(b"stsz", table(0, 1, MANY)), "it claims 50,000,000 samples"),
    ):
        with pytest.raises(ValueError, match=said):
            check_tables(io.BytesIO(content), len(content))


@pytest.mark.parametrize("seed", range(cases(20)))
def test_damaged_tables_raise_nothing_else(directory: Path, seed: int) -> None:
    rng: Any = np.random.default_rng(seed)
    content = bytearray((directory / "fragmented").read_bytes())
    for at in rng.integers(0, len(content), 20):
        content[at] = rng.integers(0, 256)
    said = []
    for data in (bytes(content), bytes(content)[: rng.integers(0, len(content))]):
        try:
            check_tables(io.BytesIO(data), len(data))
        except ValueError as error:
            said.append(str(error))
    assert all(len(text.splitlines()) == 1 for text in said)
