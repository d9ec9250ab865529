"""Records what the commands write: exit codes and digests in `tests/golden.json`, checked by `test_golden.py`.

    python tests/support/golden.py            # print the record of this checkout
    python tests/support/golden.py --write    # save it to tests/golden.json

A case is a command on one of the datasets of `golden_data.py`. Cases use only the command line, `rlds_beam.testing`,
files on disk and Reverb's own client, so the record survives refactoring.

Left out on purpose: manifest.json, plan.json, inputs-*.bin, _commits and checksums.xxh128 (only jobs need them), times,
and wording: a violation's `detail` and the reasons in `left_out` are removed from report.json and rejected records
before hashing.
The record is for requirements.lock on Python 3.11, on x86-64: JPEG bytes and pixels depend on the version of
libjpeg-turbo in simplejpeg, gzip and PNG inputs on zlib and imagecodecs.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import hashlib
import io
import json
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from checkout import ROOT
from golden_data import Datasets
from servers import drain

from rlds_beam.cli.main import main

RECORD = ROOT / "tests" / "golden.json"
DEADLINE = 120.0
"""Seconds for one command, on a busy machine."""

Record = dict[str, Any]
Result = TypeVar("Result")

_SEQUENCES = "--items=sequences --sequence_length"
_HALF = "--cast=observation/half=float32"
_CAST = f"{_HALF},observation/open=uint8"
_REPAIR = "--repair=missing_is_first,unexpected_is_first,missing_is_last,unexpected_is_last,terminal_not_last"

CONVERSIONS = (
    # Items, padding, ends of episodes
    "plain",
    "plain --items=frames --last_step=absorbing",
    "plain --items=episodes --terminal_discount=boundary",
    "plain --items=episodes --max_sequence_length=5",
    "plain --items=episodes --max_sequence_length=5 --bypass_partial_episodes",
    f"plain {_SEQUENCES}=3 --accept=non_finite",
    f"plain {_SEQUENCES}=4 --stride_length=2 --pad_end_of_episodes --terminal_discount=boundary",
    f"plain {_SEQUENCES}=5 --stride_length=3 --pad_end_of_episodes --tile_end_of_episodes",
    f"plain {_SEQUENCES}=3 --stride_length=2 --across_episodes",
    f"plain {_SEQUENCES}=5 --across_episodes --pad_end_of_episodes --tile_end_of_episodes",
    f"plain {_SEQUENCES}=1 --stride_length=3 --last_step=absorbing --terminal_discount=boundary",
    "plain --last_step=absorbing --shards=2",
    f"many {_SEQUENCES}=4 --pad_end_of_episodes --shards=5",
    f"many {_SEQUENCES}=6 --across_episodes --stride_length=5 --pad_end_of_episodes",
    "many --items=episodes --workers=2 --shards=4",
    "not_float32 --items=frames --terminal_discount=boundary",
    # Splits, slices, framings
    "plain --split=train[:50%] --items=episodes",
    f"plain --split=train[1:4] {_SEQUENCES}=3 --across_episodes",
    "two_splits --items=frames --shards=2",
    "two_splits --split=test --last_step=absorbing",
    f"two_splits --split=train+test {_SEQUENCES}=3 --pad_end_of_episodes --tile_end_of_episodes",
    "two_splits --split=train[:50%]",
    f"unnumbered {_SEQUENCES}=2 --stride_length=2",
    "shard_file --items=episodes --last_step=absorbing",
    "gzip --shards=2",
    f"gzip --split=train[:3] {_SEQUENCES}=4 --pad_end_of_episodes",
    "array_record --items=episodes",
    f"array_record --split=train[1:4] {_SEQUENCES}=3 --across_episodes --last_step=absorbing",
    "array_record --items=frames --shards=2",
    "no_episodes",
    "older_schema",
    # Leaves
    "nested",
    f"nested {_CAST}",
    f"nested {_CAST} {_SEQUENCES}=4 --pad_end_of_episodes --tile_end_of_episodes --last_step=absorbing",
    f"nested {_CAST} --items=episodes --policy_info_fields=embedding,score",
    f"nested {_CAST},action/grip=float64,reward=float64 --items=frames --policy_info_fn=golden_data:policy_info",
    f"nested {_CAST} --policy_info_fn=golden_data:policy_info --policy_info_fields=score {_SEQUENCES}=3",
    "nested --observation_fields=state,counts,arm --terminal_discount=boundary --shards=2",
    "nested --observation_fields=bytes,exact,half --cast=observation/half=float16,observation/exact=float32",
    "not_float32",
    "not_float32 --cast=reward=float32 --items=episodes --last_step=absorbing",
    # Images
    "png",
    "png --images=jpeg --items=frames",
    f"png --images=jpeg {_SEQUENCES}=4 --pad_end_of_episodes --tile_end_of_episodes",
    "png --images=jpeg --items=episodes --last_step=absorbing",
    "jpeg --items=episodes",
    "jpeg --images=jpeg --last_step=absorbing",
    f"jpeg --images=jpeg {_SEQUENCES}=3 --across_episodes",
    f"jpeg {_SEQUENCES}=5 --stride_length=2 --pad_end_of_episodes",
    "jpeg --images=jpeg --items=frames --split=train[2:]",
    "png16 --items=frames",
    "png16 --images=jpeg",
    "png_any_size",
    "png_any_size --observation_fields=state",
    "bad_images",
    "bad_images --images=jpeg --max_rejected=3",
    "png --max_image_pixels=100 --items=frames",
    # Repairs and rejected records
    "broken",
    f"broken {_REPAIR} --accept=non_finite,discount_out_of_range --max_rejected=50%",
    f"broken {_REPAIR} --items=episodes --shards=3 --last_step=absorbing",
    "broken --fail=not_an_example",
    f"several {_REPAIR} {_SEQUENCES}=2 --pad_end_of_episodes --tile_end_of_episodes",
    "several --repair=unexpected_is_last,unexpected_is_first --items=episodes",
    f"several {_REPAIR} {_SEQUENCES}=4 --across_episodes --terminal_discount=boundary",
    "damaged",
    "damaged --items=frames --accept=short_shard --shards=2 --max_rejected=10",
    "duplicates",
    "duplicates --accept=duplicate_episode --items=episodes",
    "missing_shard",
    "missing_shard --accept=missing_shard --items=frames",
    "extra_shard --accept=extra_shard",
    "short_shard",
    f"short_shard --accept=short_shard {_SEQUENCES}=3",
)

_DUPLICATES_LOOKED_FOR = ("array_record", "broken", "damaged", "duplicates", "gzip", "unnumbered")
"""Datasets checked for duplicates; the others skip this, since it takes most of the time of a tiny job."""

READINGS = (
    "check plain --rules",
    f"check broken --rules {_REPAIR}",
    "check damaged --rules --max_rejected=10",
    "check duplicates --rules --accept=duplicate_episode",
    "check bad_images --rules --decode_images",
    "check missing_shard --rules --accept=missing_shard",
    "check no_episodes --rules",
    "inspect plain",
    f"inspect nested {_CAST} --items=episodes --policy_info_fields=score",
    f"inspect two_splits --split=train+test {_SEQUENCES}=3 --pad_end_of_episodes --tile_end_of_episodes",
    f"inspect png {_SEQUENCES}=3 --across_episodes",
    "inspect array_record --split=train[1:4]",
    f"inspect broken {_REPAIR}",
)


class Push(NamedTuple):
    """A push.

    Attributes:
      flags: the dataset and the flags.
      tables: the tables of each server.
      servers: the number of servers. Ports differ in each run and decide which server gets an episode, so the record
        covers all servers together.
      convert: if set, the dataset is converted with these flags first and the result is pushed.
      keys: whether keys are recorded. Keys of a converted directory depend on the checksums in its manifest.json, and
        TF-Agents' observers choose random ones.
    """

    flags: str
    tables: tuple[str, ...] = ("t",)
    servers: int = 1
    convert: str | None = None
    keys: bool = True

    def __str__(self) -> str:
        converted = "" if self.convert is None else f" of [convert {self.convert}]".replace(" ]", "]")
        return f"{self.flags}{converted} --table={','.join(self.tables)} servers={self.servers}"


PUSHES = (
    Push("plain"),
    Push("plain --terminal_discount=boundary --last_step=absorbing --priority=2.5"),
    Push(f"plain {_SEQUENCES}=4 --stride_length=2 --pad_end_of_episodes --tile_end_of_episodes --chunk_length=3"),
    Push(f"plain {_SEQUENCES}=3 --across_episodes"),
    Push("plain --items=episodes", servers=2),
    Push("plain --items=frames"),
    Push("many --split=train[:50%] --workers=2", tables=("t", "u"), servers=2),
    Push(f"nested {_HALF} {_SEQUENCES}=3 --policy_info_fields=score --priority=observation/progress --rejected=out"),
    Push(
        f"nested {_HALF} --items=episodes --policy_info_fn=golden_data:policy_info --priority=policy_info/score "
        "--policy_info_fields=score",
        tables=("t", "u"),
    ),
    Push("png --items=frames"),
    Push(f"jpeg {_SEQUENCES}=4 --pad_end_of_episodes"),
    Push(f"broken {_REPAIR} --max_rejected=10 --rejected=out", servers=2),
    Push("gzip --items=episodes --max_sequence_length=4 --bypass_partial_episodes"),
    Push("array_record --writer=observer --priority=3", keys=False),
    Push("plain", convert="", keys=False),
    Push("png", convert=f"--images=jpeg {_SEQUENCES}=3 --pad_end_of_episodes", keys=False),
    Push("nested", convert=f"{_CAST} --items=episodes", tables=("t", "u"), servers=2, keys=False),
)


def record_conversion(case: str, datasets: Datasets, directory: Path) -> Record:
    """Returns the exit code of a conversion and a digest of every data file, by its name in the output."""
    dataset, *flags = case.split()
    output = directory / "out"
    code, _ = _run(["convert", str(datasets[dataset]), str(output), *_accepted(dataset), *flags])
    # If a job fails, the committed ranges depend on the order of the work.
    complete = (output / "manifest.json").exists()
    return {"exit": code, **(_digests(output) if complete else {})}


def record_reading(case: str, datasets: Datasets, directory: Path) -> Record:
    """Returns the exit code of `check` or `inspect`, and a digest of each part of its JSON output."""
    command, dataset, *flags = case.split()
    code, out = _run([command, str(datasets[dataset]), "--json", *flags])
    content = json.loads(out.replace(str(datasets.directory), "")) if out else {}
    content = {name: value for name, value in content.items() if name not in ("version", "command", "start", "end")}
    parts = {name: part for name, part in content.items() if _lasting(name)}
    is_short = {name: isinstance(part, str | int | float | None) for name, part in parts.items()}
    return {"exit": code, **{n: p if is_short[n] else _digest(_canonical(p)) for n, p in parts.items()}}


def record_push(case: Push, datasets: Datasets, directory: Path) -> Record:
    """Returns the exit code of a push, each table's items as `key priority digest`, and the rejected-record files."""
    dataset, *flags = case.flags.replace("--rejected=out", f"--rejected={directory / 'rejected'}").split()
    source = datasets[dataset]
    if case.convert is not None:
        convert = ["convert", str(source), str(directory / "out"), *_accepted(dataset), *case.convert.split()]
        assert _run(convert)[0] == 0
        source = directory / "out"
    else:
        flags += _accepted(dataset)
    with _servers(case) as addresses:
        command = ["push", str(source), f"--reverb={','.join(addresses)}", f"--table={','.join(case.tables)}", *flags]
        found: Record = {"exit": _run(command)[0]}
        for table in case.tables:
            items = [item for a in addresses for item in _within(functools.partial(drain, a, table))]
            assert len({item.info.key for item in items}) == len(items), f"{table}: duplicate key"
            found[f"table {table}"] = sorted(_item(item, case.keys) for item in items)
    return {**found, **_digests(directory / "rejected")}


def record_everything(directory: Path) -> dict[str, dict[str, Record]]:
    """Returns the record of this checkout, in the form of `tests/golden.json`."""
    datasets, found = Datasets(directory / "data"), {}
    for kind, (cases, record) in CASES.items():
        found[kind] = {}
        for i, case in enumerate(cases):
            found[kind][str(case)] = record(case, datasets, directory / f"{kind}-{i}")
    return found


CASES: dict[str, tuple[tuple[Any, ...], Callable[[Any, Datasets, Path], Record]]] = {
    "convert": (CONVERSIONS, record_conversion),
    "read": (READINGS, record_reading),
    "push": (PUSHES, record_push),
}
"""Maps a kind to its cases and the function that records one, given the datasets and an empty directory."""


def _accepted(dataset: str) -> list[str]:
    return [] if dataset in _DUPLICATES_LOOKED_FOR else ["--accept=duplicate_episode"]


def _run(arguments: list[str]) -> tuple[int, str]:
    """Runs a command in this process; returns its exit code and output."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = _within(lambda: main(arguments))
    return code, out.getvalue()


def _within(call: Callable[[], Result]) -> Result:
    """Returns the result of the call; fails if it misses the deadline."""
    future: concurrent.futures.Future[Result] = concurrent.futures.Future()

    def work() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=work, daemon=True).start()
    return future.result(DEADLINE)


@contextlib.contextmanager
def _servers(case: Push) -> Iterator[list[str]]:
    """Yields addresses of Reverb servers whose tables return each item once."""
    import reverb

    fifo, limiter = reverb.selectors.Fifo, reverb.rate_limiters.MinSize
    with contextlib.ExitStack() as stack:
        servers = [
            reverb.Server(
                [reverb.Table(name, fifo(), fifo(), 10_000, limiter(1), max_times_sampled=1) for name in case.tables]
            )
            for _ in range(case.servers)
        ]
        for server in servers:
            stack.callback(server.stop)
        yield [f"127.0.0.1:{server.port}" for server in servers]


def _item(item: Any, with_key: bool) -> str:
    """Formats a sampled item as `key priority digest`."""
    data = [f"{column.dtype} {column.shape}".encode() + column.tobytes() for column in item.data]
    key = [f"{item.info.key:020d}"] if with_key else []
    return " ".join([*key, f"{item.info.priority:g}", _digest(*data)])


_FOR_JOBS = ("manifest.json", "plan.json", "_commits", "checksums.xxh128")


def _digests(directory: Path) -> dict[str, str]:
    """Returns a digest of each file below a directory, by path."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file() and path.name[:7] != "inputs-"]
    names = [(path.relative_to(directory).as_posix(), path) for path in files]
    return {name: _digest(_content(path)) for name, path in names if name.split("/")[0] not in _FOR_JOBS}


def _content(path: Path) -> bytes:
    """Reads a file, without the wording of violations."""
    if path.name == "report.json":
        return _canonical(json.loads(path.read_text()))
    if path.suffix == ".jsonl":
        return b"\n".join(_canonical(json.loads(line)) for line in path.read_text().splitlines())
    return path.read_bytes()


def _canonical(content: Any) -> bytes:
    """Encodes JSON in its own order, without wording and times."""

    def strip(node: Any) -> Any:
        if isinstance(node, dict):
            return {name: strip(child) for name, child in node.items() if _lasting(name)}
        return [strip(child) for child in node] if isinstance(node, list) else node

    return json.dumps(strip(content)).encode()


def _lasting(name: str) -> bool:
    # report.json has since gained counts of connector edits; the rest of the record is unchanged.
    return name not in ("detail", "seconds", "left_out", "connectors")


def _digest(*parts: bytes) -> str:
    """Returns 64 bits of SHA-256 as hex."""
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def _text(found: dict[str, dict[str, Record]]) -> str:
    """Formats the record as JSON, one line per case."""
    kinds = []
    for kind, cases in found.items():
        lines = [f"  {json.dumps(case)}: {json.dumps(content)}" for case, content in cases.items()]
        kinds.append(f" {json.dumps(kind)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(kinds) + "\n}\n"


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as temporary:
        text = _text(record_everything(Path(temporary)))
    if "--write" in sys.argv[1:]:
        RECORD.write_text(text)
    else:
        print(text, end="")
