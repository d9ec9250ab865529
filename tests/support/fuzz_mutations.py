"""Mutations of a dataset's files: damaged bytes, hostile metadata, and well-formed tables with unexpected content."""

from __future__ import annotations

import contextlib
import functools
import gzip
import io
import json
import os
import random
import re
import warnings
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rlds_beam.encoding.base import Record
from rlds_beam.encoding.tfrecord.file import read_records
from rlds_beam.encoding.tfrecord.rows import frame_all

_LONG = "7" * 5000


class _Raw(float):
    """A number that `json.dumps` writes as the given text."""

    def __new__(cls, text: str) -> _Raw:
        made = super().__new__(cls, 0.5)
        made.text = text  # type: ignore[attr-defined]
        return made

    def __repr__(self) -> str:
        return str(self.text)  # type: ignore[attr-defined]


def _deep(levels: int) -> Any:
    return functools.reduce(lambda below, _: [below], range(levels), 1)


VALUES: tuple[Callable[[Any], Any], ...] = (
    *(
        lambda old, value=value: value
        for value in (
            None,
            True,
            -1,
            0,
            1,
            10**9,
            10**18,
            10**30,
            1.5,
            1e300,
            -0.0,
            float("nan"),
            float("inf"),
            "",
            "a",
            "/",
            "..",
            "0:1",
            "9" * 30,
            _LONG,
            "x" * 300,
            "a\nb",
            "\x00",
            "é",
            "\ud800",
            "1e999",
            [],
            [1],
            [[]],
            [None],
            [10**12] * 3,
            ["a", 1],
            {},
            {"a": 1},
            {"": None},
            _deep(500),
        )
    ),
    lambda old: [old],
    lambda old: {"a": old},
    lambda old: str(old),
    lambda old: [old, old],
    lambda old: old * 2 if isinstance(old, (str, list)) else old,
    lambda old: -old if isinstance(old, (int, float)) else old,
    lambda old: old * 10**9 if isinstance(old, (int, float)) else old,
    lambda old: old[::-1] if isinstance(old, (str, list)) else old,
    lambda old: old[:-1] if isinstance(old, (str, list)) else old,
    lambda old: dict.fromkeys(old, 0) if isinstance(old, dict) else old,
    lambda old: _Raw(_LONG),
    lambda old: _Raw("1e400"),
    lambda old: _Raw("[" * 100_000 + "]" * 100_000),
)


def damage_json(content: Any, rng: random.Random) -> str:
    """Returns JSON text with one value or key changed."""
    places = list(_places(content))
    holder, key = rng.choice(places) if places else (None, None)
    how = rng.randrange(12)
    if holder is None:
        content = rng.choice(VALUES)(content)
    elif how == 0:
        del holder[key]
    elif how == 1 and isinstance(holder, dict):
        holder[rng.choice(["", "a/b", "..", "\ud800", "x" * 300, "a.b"])] = holder.pop(key)
    elif how == 2 and isinstance(holder[key], str) and holder[key][:1] in "{[":
        with contextlib.suppress(ValueError):
            holder[key] = damage_json(json.loads(holder[key]), rng)
    else:
        holder[key] = rng.choice(VALUES)(holder[key])
    text = json.dumps(content, indent=rng.choice([None, 1]), ensure_ascii=rng.random() < 0.5)
    if how == 3 and isinstance(content, dict) and content:
        name = json.dumps(rng.choice(list(content)))
        text = text.rstrip()[:-1] + f", {name}: {json.dumps(rng.choice(VALUES)(0))}}}"  # a duplicate key
    return text


def _places(content: Any) -> Iterator[tuple[Any, Any]]:
    pairs = content.items() if isinstance(content, dict) else enumerate(content) if isinstance(content, list) else ()
    for key, value in pairs:
        yield content, key
        yield from _places(value)


def replace_file(path: Path, rng: random.Random, other: bytes) -> None:
    """Removes the file, or replaces it with something else, for example with the content of another file."""
    whole = path.read_bytes()
    path.unlink()
    how = rng.randrange(8)
    if how == 0:
        path.mkdir()
    elif how == 1:
        os.mkfifo(path)
    elif how == 2:
        path.symlink_to("/dev/zero")
    elif how == 3:
        path.symlink_to(path.name)
    elif how == 4:
        with open(path, "wb") as file:
            file.write(whole)
            file.truncate(300 << 20)
    elif how >= 6:
        path.write_bytes(other)


def mutate(root: Path, rng: random.Random) -> str:
    """Changes one file of a dataset in place; returns a description.

    Each kind of file is as likely as the others, however many files there are of it.
    """
    files = sorted(path for path in root.rglob("*") if path.is_file() and not path.is_symlink())
    kinds = {kind_of(path) for path in files}
    kind = rng.choice(sorted(kinds))
    path = rng.choice([path for path in files if kind_of(path) == kind])
    how = rng.random()
    if how < 0.05:
        replace_file(path, rng, rng.choice(files).read_bytes())
        kind = "replaced"
    elif how < 0.5 and kind in TABLES:
        TABLES[kind](path, rng)
    elif how < 0.8 and kind in TEXTS:
        TEXTS[kind](path, rng)
    elif how < 0.6 and kind in CONTAINERS:
        CONTAINERS[kind](path, rng)
        kind += ", inside"
    else:
        path.write_bytes(damage_bytes(path.read_bytes(), rng))
        kind = "bytes"
    return f"{path.relative_to(root)} ({kind})"


def kind_of(path: Path) -> str:
    """The kind of a file by its name: `json`, `jsonl`, `yaml`, `hdf5`, ..., or `other`."""
    name = path.name
    for kind, pattern in KINDS.items():
        if re.search(pattern, name):
            return kind
    return "other"


KINDS = {
    "json": r"\.json$|^\.z",
    "jsonl": r"\.jsonl$",
    "yaml": r"\.yaml$",
    "hdf5": r"\.(h5|hdf5)$",
    "parquet": r"\.parquet$",
    "arrow": r"\.arrow$",
    "npy": r"\.npy$",
    "zip": r"\.(npz|zip)$",
    "tfrecord": r"\.tfrecord.*\d$",
    "mcap": r"\.mcap$",
}
"""A pattern for the file names of each kind."""


def _json_file(path: Path, rng: random.Random) -> None:
    text = damage_json(json.loads(path.read_text()), rng)
    path.write_text(text, errors="surrogatepass" if rng.random() < 0.5 else "replace")


def _yaml_file(path: Path, rng: random.Random) -> None:
    """JSON is YAML."""
    text = damage_json(yaml.safe_load(path.read_text()), rng)
    path.write_text(text, errors="surrogatepass" if rng.random() < 0.5 else "replace")


def _json_lines(path: Path, rng: random.Random) -> None:
    lines = path.read_text().splitlines()
    at = rng.randrange(len(lines))
    lines[at] = damage_json(json.loads(lines[at]), rng).replace("\n", " ")
    path.write_text("\n".join(lines), errors="surrogatepass")


_BORDERS = b"\0", b"\xff", b"\x7f", b"\x80", b"\1"
_INTEGERS = (
    0,
    1,
    2,
    127,
    255,
    2**15,
    2**16 - 1,
    2**24,
    10**8,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**40,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
)
_NAMES = b"../../x", b"/etc/passwd", b"\x1b[2J", b"\0", b"a\nb", b"%s%n", b"\xff\xfe", b"a" * 300, b""


def damage_bytes(content: bytes, rng: random.Random) -> bytes:
    """Returns bytes with one to four changes; half of them near the beginning or the end, where headers are."""
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        content = _damage_at(content, _place(len(content), rng), rng)
    return content


def _place(size: int, rng: random.Random) -> int:
    where = rng.random()
    if where < 0.25:
        return rng.randrange(min(size, 512) + 1)
    return rng.randrange(max(0, size - 512) if where < 0.5 else 0, size + 1)


def _damage_at(content: bytes, at: int, rng: random.Random) -> bytes:
    size = rng.choice([1, 2, 4, 8, 16, 64, 200, 1024])
    before, block, after = content[:at], content[at : at + size], content[at + size :]
    how = rng.randrange(13)
    if how <= 2 and block:  # flipped bits
        return before + bytes([block[0] ^ 1 << rng.randrange(8)]) + content[at + 1 :]
    if how == 3:
        return before + rng.choice(_BORDERS) + content[at + 1 :]
    if how == 4:
        return before if rng.random() < 0.7 else rng.choice([b"", b"[" * 200_000])
    if how == 5:
        return before + after
    if how == 6:
        return before + block * rng.choice([2, 2, 2, 3, 1000 if size <= 64 else 2]) + after
    if how == 7:
        return before + rng.choice([bytes(len(block)), rng.randbytes(len(block))]) + after
    if how == 8:  # another block
        other = rng.randrange(len(content) + 1)
        return before + content[other : other + size] + after
    if how == 9:
        return before + rng.randbytes(rng.choice([1, 4, 16])) + content[at:]
    if how == 10 and (found := [*re.finditer(rb"[ -~]{3,}", content[at : at + 4096])]):
        text = rng.choice(found)
        name = rng.choice(_NAMES)
        if rng.random() < 0.5:  # of the same length
            name = (name + bytes(len(text[0])))[: len(text[0])]
        return content[: at + text.start()] + name + content[at + text.end() :]
    return _damage_integer(content, at, rng)


def _damage_integer(content: bytes, at: int, rng: random.Random) -> bytes:
    """Replaces an integer of 2, 4, or 8 bytes: preferably one that may be a count, size, or offset."""
    width, order = rng.choice([2, 4, 4, 8, 8]), rng.choice(["little", "little", "little", "big"])
    for place in range(at, min(at + 64, len(content) - width)):
        number = int.from_bytes(content[place : place + width], order)  # type: ignore[arg-type]
        if 0 < number <= 2 * len(content):
            changed = rng.choice([*_INTEGERS, number - 1, number + 1, number * 2, number * 1000])
            replaced = (changed % (1 << 8 * width)).to_bytes(width, order)  # type: ignore[arg-type]
            return content[:place] + replaced + content[place + width :]
    return content[:at] + b"\xff" * width + content[at + width :]


def _zip_member(path: Path, rng: random.Random) -> None:
    """Damages a member of an archive; its checksum is correct."""
    with zipfile.ZipFile(path) as archive:
        members = [(info, archive.read(info)) for info in archive.infolist()]
    at, how = rng.randrange(len(members)), rng.randrange(12)
    info, content = members[at]
    if how == 0:
        del members[at]
    elif how == 1:
        members.append((info, content))
    elif how == 2:
        info.filename = rng.choice(["../x", "/x", "", "a" * 300, "x\n", members[0][0].filename])
    elif how == 3:
        info.compress_type = rng.choice([zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
    elif kind_of(Path(info.filename)) in ("json", "npy") and how < 8:
        alone = path.with_name(Path(info.filename).name)
        alone.write_bytes(content)
        (TEXTS | TABLES)[kind_of(alone)](alone, rng)
        members[at] = info, alone.read_bytes()
        alone.unlink()
    else:
        members[at] = info, damage_bytes(content, rng)
    with zipfile.ZipFile(path, "w") as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # duplicate names
        for info, content in members:
            archive.writestr(info, content)


def _tfrecord(path: Path, rng: random.Random) -> None:
    """Damages a record; its checksums are correct."""
    content = path.read_bytes()
    zipped = content[:2] == b"\x1f\x8b"
    whole = gzip.decompress(content) if zipped else content
    payloads = [unit.payload for unit in read_records(io.BytesIO(whole)) if isinstance(unit, Record)]
    at, how = rng.randrange(len(payloads)), rng.randrange(10)
    if how == 0:
        del payloads[at]
    elif how == 1:
        payloads.insert(rng.randrange(len(payloads) + 1), payloads[at])
    elif how == 2:
        rng.shuffle(payloads)
    elif not zipped or how < 6:
        payloads[at] = damage_bytes(payloads[at], rng)
    whole = frame_all(payloads)
    if zipped and how >= 6:
        whole = damage_bytes(whole, rng)
    path.write_bytes(gzip.compress(whole) if zipped else whole)


def _mcap(path: Path, rng: random.Random) -> None:
    """Damages, removes, repeats, or moves whole records."""
    content = path.read_bytes()
    records, at = [], 8
    while at + 9 <= len(content) - 8:
        stop = at + 9 + int.from_bytes(content[at + 1 : at + 9], "little")
        records.append(content[at:stop])
        at = stop
    at, how = rng.randrange(len(records)), rng.randrange(8)
    if how == 0:
        del records[at]
    elif how == 1:
        records.insert(rng.randrange(len(records) + 1), records[at])
    elif how == 2:
        records.insert(rng.randrange(len(records)), records.pop(at))
    else:
        body = damage_bytes(records[at][9:], rng)
        records[at] = records[at][:1] + len(body).to_bytes(8, "little") + body
    path.write_bytes(content[:8] + b"".join(records) + content[-8:])


def _hdf5(path: Path, rng: random.Random) -> None:
    import h5py

    with h5py.File(path, "a") as file:
        names: list[str] = []
        file.visit(names.append)
        name = rng.choice(names)
        old = file[name]
        how = rng.randrange(12)
        shape = old.shape if hasattr(old, "shape") else (3,)
        dtype = old.dtype if hasattr(old, "dtype") else np.dtype("f4")
        if how == 0:
            del file[name]
            return
        if how == 1 and hasattr(old, "dtype") and shape == ():
            value = rng.choice([10**9, 10**18, -1, 0, np.inf, np.nan, 2**64 - 1, "many", b"\xff", [1, 2], 1.5])
            del file[name]
            file[name] = value
            return
        del file[name]
        if how == 2:
            file.create_group(name)
        elif how == 3:  # never filled
            file.create_dataset(name, (10 ** rng.randrange(4, 12), *shape[1:]), dtype, chunks=(100, *shape[1:]))
        elif how == 4:
            file.create_dataset(name, (10 ** rng.randrange(4, 10), 1000), "f4", fillvalue=1, chunks=(100, 10))
        elif how == 5:
            file.create_dataset(name, data=np.zeros((2_000_000, 20), np.uint8), compression="gzip", chunks=(20000, 20))
        elif how == 6:
            file[name] = rng.choice([0, np.nan, b"a", "a", np.zeros(0), np.zeros((0, 3)), h5py.Empty("f4")])
        elif how == 7:
            file.create_dataset(name, shape, h5py.string_dtype())
        elif how == 8:
            file[name] = np.zeros(max(1, shape[0]) if shape else 1, [("a", "f4"), ("b", "i8", 3)])
        elif how == 9:
            file.create_dataset(name, data=np.zeros((*shape, 1)), dtype=rng.choice(["c8", "f2", "u8", "i1", "S3"]))
        elif how == 10:
            file[name] = h5py.SoftLink("/" + rng.choice(["nowhere", name, ""]))
        else:
            file.create_dataset(name, tuple(reversed(shape)) or (2, 2), dtype)


def _npy(path: Path, rng: random.Random) -> None:
    array = np.load(path)
    how = rng.randrange(9)
    if how == 0:
        np.save(path, np.array(rng.choice([0, np.nan, 10**18])))
    elif how == 1:
        np.save(path, np.full(array.shape, rng.choice([np.nan, np.inf, -1.0, 1e18])))
    elif how == 2:
        np.save(path, np.zeros(0, array.dtype))
    elif how == 3:
        np.save(path, np.array([None, {}, "a"], object), allow_pickle=True)
    elif how == 4:
        with open(path, "wb") as file:
            np.savez_compressed(file, a=np.zeros((1000, 1000)))
    elif how == 5:
        np.save(path, array[..., None])
    elif how == 6:
        np.save(path, array.astype(rng.choice(["c8", "U3", "i1", "f8", "datetime64[s]"])))
    else:  # a header with a larger size than the data
        content = path.read_bytes()
        shape = str(array.shape).encode()
        other = rng.choice([b"(999999999999,)", b"(10**9,)", b"(-1,)", b"(2, 2)", b"()", b"(1e9,)", b"(" * 60])
        at = content.find(shape)
        path.write_bytes(
            content[:at] + other + content[at + len(shape) : 128 - len(other) + len(shape)] + content[128:]
        )


def _arrow(path: Path, rng: random.Random) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    table = parquet.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(pa.OSFile(str(path))).read_all()
    name = rng.choice(table.column_names)
    at, rows = table.column_names.index(name), table.num_rows
    how = rng.randrange(9)
    if how == 0:
        table = table.remove_column(at)
    elif how == 1:
        table = table.rename_columns(
            [rng.choice(["", "a", "episode_index", ".."]) if n == name else n for n in table.column_names]
        )
    elif how == 2:
        table = table.slice(0, rng.choice([0, 1, max(0, rows - 1)]))
    elif how == 3:
        table = pa.concat_tables([table, table])
    elif how == 4:
        table = table.append_column(name, table[name])
    else:
        values: list[Any] = [
            None,
            10**11,
            -1,
            2**62,
            0,
            1.5,
            float("nan"),
            float("inf"),
            "",
            "a",
            "x" * 300,
            b"\xff",
            [],
            [1, 2],
            [None],
            {"a": 1},
            True,
            "../a",
            "1e9",
        ]
        one = rng.choice(values)
        made = [one] * rows
        if rng.random() < 0.5 and rows:
            made = table[name].to_pylist()
            made[rng.randrange(rows)] = one
        try:
            column = pa.array(made, table.schema.field(name).type)
        except (pa.ArrowException, TypeError, ValueError):
            column = pa.array([one] * rows)
        about = table.schema.field(name).metadata
        table = table.set_column(at, pa.field(name, column.type, metadata=about), column)
    if path.suffix == ".parquet":
        parquet.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)


TABLES: dict[str, Callable[[Path, random.Random], None]] = {
    "hdf5": _hdf5,
    "npy": _npy,
    "parquet": _arrow,
    "arrow": _arrow,
}
TEXTS: dict[str, Callable[[Path, random.Random], None]] = {"json": _json_file, "jsonl": _json_lines, "yaml": _yaml_file}
CONTAINERS: dict[str, Callable[[Path, random.Random], None]] = {
    "zip": _zip_member,
    "tfrecord": _tfrecord,
    "mcap": _mcap,
}
"""How a file of each kind is changed such that it is still one of that kind."""
