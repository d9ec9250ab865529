"""Records what `convert` writes: exit codes and digests in `tests/golden.json`, checked by `test_golden.py`.

    python tests/support/golden.py            # print the record of this checkout
    python tests/support/golden.py --write    # save it to tests/golden.json

Cases use only the command line, `rlds_beam.testing`, and files on disk, so the record survives refactoring. Left out:
what only jobs need (manifest, plan, commits, checksums), and reports, which have times and wording.
The record is for requirements.lock on Python 3.11, on x86-64: JPEG bytes and pixels depend on the version of
libjpeg-turbo in simplejpeg, PNG inputs on imagecodecs.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from checkout import ROOT

from rlds_beam.cli.main import main
from rlds_beam.testing import BREAKABLE, cut, flip_byte, make_episode, shard_paths, write_dataset

RECORD = ROOT / "tests" / "golden.json"

_SEQUENCES = "--items=sequences --sequence_length"
_CAST = "--cast=observation/half=float32,observation/open=uint8"
_REPAIR = "--repair=missing_is_first,unexpected_is_first,missing_is_last,unexpected_is_last,terminal_not_last"

CASES = (
    "plain",
    "plain --items=frames --last_step=absorbing --shards=2",
    "plain --items=episodes --terminal_discount=boundary",
    "plain --items=episodes --max_sequence_length=5 --bypass_partial_episodes",
    f"plain {_SEQUENCES}=4 --stride_length=2 --pad_end_of_episodes --terminal_discount=boundary",
    f"plain {_SEQUENCES}=5 --stride_length=3 --pad_end_of_episodes --tile_end_of_episodes",
    f"plain --split=train[1:4] {_SEQUENCES}=3 --across_episodes",
    f"many {_SEQUENCES}=6 --across_episodes --stride_length=5 --pad_end_of_episodes",
    "many --items=episodes --workers=2 --shards=4",
    f"two_splits --split=train+test {_SEQUENCES}=3 --pad_end_of_episodes --tile_end_of_episodes",
    f"nested {_CAST}",
    f"nested {_CAST} {_SEQUENCES}=4 --pad_end_of_episodes --tile_end_of_episodes --policy_info_fields=embedding,score",
    "nested --observation_fields=bytes,exact,half --cast=observation/half=float16,observation/exact=float32",
    "png",
    "png --images=jpeg --items=frames",
    "jpeg --items=episodes",
    f"jpeg --images=jpeg {_SEQUENCES}=3 --across_episodes",
    "broken",
    f"broken {_REPAIR} --accept=non_finite,discount_out_of_range --max_rejected=0.5",
    f"several {_REPAIR} {_SEQUENCES}=2 --pad_end_of_episodes --tile_end_of_episodes",
    "damaged --max_rejected=10",
)
"""A dataset of `DATASETS`, and flags of `convert`."""

_LEFT_OUT = ("_commits/", "manifest.json", "plan.json", "inputs-", "checksums.xxh128", "report.json")
_LENGTHS = (6, 1, 2, 9, 4)


def _plain(directory: Path) -> Path:
    return write_dataset(
        directory, [make_episode(n, seed=i, terminal=i % 2 == 0) for i, n in enumerate(_LENGTHS)], shards=2
    )


def _many(directory: Path) -> Path:
    return write_dataset(directory, [make_episode(3 + i % 4, seed=i) for i in range(24)], shards=3)


def _two_splits(directory: Path) -> Path:
    write_dataset(directory, [make_episode(4, seed=10 + i) for i in range(3)], split="test")
    return write_dataset(directory, [make_episode(5, seed=i) for i in range(4)], shards=2)


def _nested(directory: Path) -> Path:
    """Nested leaves of many dtypes, text, and episode metadata."""

    def episode(n: int, seed: int) -> Any:
        rng = np.random.default_rng(100 + seed)
        columns = {
            "observation/half": rng.integers(-9, 9, (n, 2)).astype(ml_dtypes.bfloat16),
            "observation/bytes": rng.integers(0, 256, (n, 3, 2), np.uint8),
            "observation/counts": rng.integers(-(2**62), 2**62, n),
            "observation/open": rng.integers(0, 2, n).astype(bool),
            "observation/exact": rng.integers(-999, 999, (n, 2)) / 8,
            "observation/instruction": ["put the cup on the plate"] * n,
            "embedding": rng.integers(-99, 99, (n, 2)) / 4,
            "score": rng.integers(0, 5, n).astype(np.int32),
        }
        shapes = {"observation": {"state": 3, "arm": (2, 2)}, "action": {"joints": 2, "grip": ()}}
        metadata = {"file_path": f"/data/{seed}.hdf5", "success": seed % 2}
        return make_episode(n, seed=seed, columns=columns, metadata=metadata, **shapes)  # type: ignore[arg-type]

    return write_dataset(directory, [episode(n, i) for i, n in enumerate(_LENGTHS)], name="robot/small", shards=2)


def _images(directory: Path, encoding: str) -> Path:
    """A camera of PNG or JPEG images, and a vector."""
    import imagecodecs
    import simplejpeg

    def encode(pixels: Any) -> bytes:
        if encoding == "png":
            return bytes(imagecodecs.png_encode(pixels))
        return bytes(simplejpeg.encode_jpeg(pixels, quality=90))

    def episode(n: int, seed: int) -> Any:
        rng = np.random.default_rng(200 + seed)
        smooth = np.add.outer(np.arange(16), np.arange(24))[..., None] * np.arange(2, 5)
        pixels = [(smooth + rng.integers(0, 30, (16, 24, 3))).astype(np.uint8) for _ in range(n)]
        columns = {"observation/camera": [*map(encode, pixels)]}
        return make_episode(n, seed=seed, observation={"state": 3}, columns=columns)

    target = write_dataset(directory, [episode(n, i) for i, n in enumerate(_LENGTHS)], shards=2)
    features = json.loads((target / "features.json").read_text())
    steps = features["featuresDict"]["features"]["steps"]["sequence"]["feature"]["featuresDict"]["features"]
    steps["observation"]["featuresDict"]["features"]["camera"] = {
        "pythonClassName": "tensorflow_datasets.core.features.image_feature.Image",
        "image": {"shape": {"dimensions": ["16", "24", "3"]}, "dtype": "uint8", "encodingFormat": encoding},
    }
    (target / "features.json").write_text(json.dumps(features))
    return target


def _broken(directory: Path) -> Path:
    """An episode for every rule that `make_episode` can break, records that cannot be decoded, and four valid ones."""
    good = [make_episode(5, seed=i) for i in range(4)]
    rows = [make_episode(5, seed=20 + i, breaks=[rule]) for i, rule in enumerate(BREAKABLE)]
    wide = make_episode(5, seed=31, observation=4)
    return write_dataset(directory, [good[0], *rows, good[1], wide, b"not an example", good[2], good[3]], shards=2)


def _several(directory: Path) -> Path:
    """Records with several episodes, and with episodes that lack a first or last step."""
    flags = ["F M L | F M LT", "F M | F L", "F M M", "M M L", "F MT M L", "F M L"]
    return write_dataset(directory, [make_episode(f, seed=i) for i, f in enumerate(flags)], shards=2)


def _damaged(directory: Path) -> Path:
    """Flipped bytes in the first shard, a truncated second shard."""
    target = write_dataset(directory, [make_episode(5, seed=i) for i in range(12)], shards=2)
    first, second = shard_paths(target)
    flip_byte(first, 1, at=40)
    flip_byte(first, 3, "payload_crc")
    cut(second, 2, extra=30)
    return target


DATASETS: dict[str, Callable[[Path], Path]] = {
    "plain": _plain,
    "many": _many,
    "two_splits": _two_splits,
    "nested": _nested,
    "png": lambda directory: _images(directory, "png"),
    "jpeg": lambda directory: _images(directory, "jpeg"),
    "broken": _broken,
    "several": _several,
    "damaged": _damaged,
}


def record(case: str, directory: Path) -> dict[str, Any]:
    """The exit code of a conversion, and a digest of every data file by its path in the output."""
    dataset, *flags = case.split()
    source, output = DATASETS[dataset](directory / "data"), directory / "out"
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = main(["convert", str(source), str(output), *flags])
    if not (output / "manifest.json").exists():
        return {"exit": code}  # which ranges were committed depends on the order of the work
    found: dict[str, Any] = {"exit": code}
    for path in sorted(output.rglob("*")):
        name = path.relative_to(output).as_posix()
        if path.is_file() and not name.startswith(_LEFT_OUT) and path.suffix != ".jsonl":
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
    return found


def _record_all() -> str:
    """The record of this checkout as JSON, one line per case."""
    lines = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as directory:
            lines.append(f"  {json.dumps(case)}: {json.dumps(record(case, Path(directory)))}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    text = _record_all()
    if "--write" in sys.argv[1:]:
        RECORD.write_text(text)
    else:
        print(text, end="")
