"""Fuzzes metadata: takes a small dataset for each source and damages one file at a time.

    python metadata_fuzz.py DIRECTORY SOURCE,SOURCE SEED CASES [FIRST]

runs `inspect`, `validate` and a conversion on the damaged datasets, with bounded memory and time. It prints a JSON
line before each command, and one after it with the problem found, if any.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import random
import resource
import shutil
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fuzzed_datasets import DATASETS, Target
from fuzzed_tables import damage_table

CODES = {0, 1, 2, 3}
SECONDS = 120
MEMORY = 600 << 20
"""Bytes that a case may add to resident memory; the datasets have a few kB."""

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
            None, True, -1, 0, 1, 10**9, 10**18, 10**30, 1.5, 1e300, -0.0, float("nan"), float("inf"), "", "a", "/",
            "..", "0:1", "9" * 30, _LONG, "x" * 300, "a\nb", "\x00", "é", "\ud800", "1e999", [], [1], [[]], [None],
            [10**12] * 3, ["a", 1], {}, {"a": 1}, {"": None}, _deep(500),
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
)  # fmt: skip


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


def damage_text(content: bytes, rng: random.Random) -> bytes:
    """Returns bytes that are not valid text, or are truncated."""
    at = rng.randrange(len(content) + 1)
    how = rng.randrange(8)
    if how == 0:
        return content[:at]
    if how == 1:
        return b""
    if how == 2:
        return b"\xef\xbb\xbf" + content
    if how == 3:
        return content.decode("utf-8", "replace").encode("utf-16")
    if how == 4:
        return b"[" * 200_000
    if how == 5:
        return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
    return content[:at] + rng.choice([b"\xff", b"\xe4", b"\xed\xa0\x80", b"\x00", b"\n", b"NaN"]) + content[at:]


def damage_file(path: Path, rng: random.Random) -> None:
    """Removes the file, or replaces it with something else."""
    whole = path.read_bytes()
    path.unlink()
    how = rng.randrange(6)
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


def damage(root: Path, target: Target, rng: random.Random) -> str:
    """Damages one file of a dataset; returns a description."""
    found = [path for path in sorted(root.glob(target.pattern)) if path.is_file()]
    path = rng.choice(found)
    kind = target.kind
    if rng.random() < 0.1:
        damage_file(path, rng)
        kind = "file"
    elif kind == "json" and rng.random() < 0.85:
        text = damage_json(json.loads(path.read_text()), rng)
        path.write_text(text, errors="surrogatepass" if rng.random() < 0.5 else "replace")
    elif kind == "jsonl" and rng.random() < 0.85:
        lines = path.read_text().splitlines()
        at = rng.randrange(len(lines))
        lines[at] = damage_json(json.loads(lines[at]), rng).replace("\n", " ")
        path.write_text("\n".join(lines), errors="surrogatepass")
    elif kind in ("json", "jsonl", "text", "bytes"):
        path.write_bytes(damage_text(path.read_bytes(), rng))
    elif rng.random() < 0.25:
        path.write_bytes(damage_text(path.read_bytes(), rng))
        kind = "bytes"
    else:
        damage_table(kind, path, rng)
    return f"{path.relative_to(root)} ({kind})"


def run(argv: list[str]) -> tuple[int | str, str]:
    """Returns the exit code or the exception, and the output."""
    from rlds_beam.pipelines import cli

    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code: int | str = cli.main(argv)
        except BaseException:
            code = traceback.format_exc()
    return code, err.getvalue()


def problem(code: int | str, said: str, grown: int) -> str | None:
    """Returns what is wrong with how a command ended, or None."""
    if not isinstance(code, int):
        return code
    if code not in CODES:
        return f"exit {code}: {said}"
    if "Traceback" in said or "Error: " in said.replace("rlds-beam: ", ""):
        return f"exit {code}: {said}"
    if code in (1, 2) and not said.strip():
        return f"exit {code} without a word"
    if len(said) > 2000 or said.count("\n") > 25:
        return f"exit {code}: more than a screen: {said[:500]}"
    return f"{grown >> 20} MB" if grown > MEMORY else None


def resident(what: str) -> int:
    """Resident memory of this process in bytes: `VmRSS`, or `VmHWM` for the peak since `forget`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(what):
            return int(line.split()[1]) << 10
    return 0


def forget() -> None:
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def commands(source: str, where: str, output: str, rng: random.Random) -> list[list[str]]:
    """Chooses commands: usually only `inspect`, since the others take longer."""
    given, *more = DATASETS[source].arguments(where)
    if source != "merged" and rng.random() < 0.3:  # recognized
        more = [one for one in more if not one.startswith("--from=")]
    made = [["inspect", given, *more]]
    if rng.random() < 0.05:
        made.append(["validate", given, *more, "--workers=1"])
    if rng.random() < 0.05:
        made.append(["convert", given, output, *more, "--to=rlds", "--workers=1"])
    return made


def fuzz(directory: Path, source: str, seed: str, cases: range) -> None:
    """Runs the commands on datasets that are damaged in different ways; prints the results."""
    whole, scratch = directory / source, directory / f"{source}-{os.getpid()}"
    dataset = DATASETS[source]
    if not whole.exists():
        try:
            dataset.make(whole)
        except (ImportError, pytest.skip.Exception) as error:  # an extra is not installed
            report(source=source, skipped=str(error))
            return
    for case in cases:
        rng = random.Random(f"{source} {seed} {case}")
        shutil.rmtree(scratch, ignore_errors=True)
        shutil.copytree(whole, scratch / "data", symlinks=True)
        try:
            what = damage(scratch / "data", rng.choice(dataset.targets), rng)
        except Exception as error:  # the damage itself cannot be written
            report(source=source, case=case, skipped=repr(error)[:200])
            continue
        for argv in commands(source, str(scratch / "data"), str(scratch / "out"), rng):
            report(source=source, case=case, what=what, argv=argv)
            forget()
            before = resident("VmRSS")
            signal.alarm(SECONDS)  # ends the process
            code, said = run(argv)
            signal.alarm(0)
            wrong = problem(code, said, resident("VmHWM") - before)
            report(code=code if isinstance(code, int) else -1, problem=wrong, said=said[-300:])
    shutil.rmtree(scratch, ignore_errors=True)


def report(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)


def main(directory: str, sources: str, seed: str, cases: str, first: str = "0") -> None:
    # Limits address space rather than memory, which bounds the size of one allocation.
    resource.setrlimit(resource.RLIMIT_AS, (6 << 30, 6 << 30))
    for source in sources.split(","):
        fuzz(Path(directory), source, seed, range(int(first), int(first) + int(cases)))


if __name__ == "__main__":
    main(*sys.argv[1:])
