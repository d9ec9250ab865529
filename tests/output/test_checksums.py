"""The checksums of an output: what the usual command says about them, and those of earlier versions."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import xxhash
from jobs import EPISODES, STEPS, episodes

from rlds_beam.errors import RldsBeamError, UsageError
from rlds_beam.formats.trajectories.loading import load_trajectories
from rlds_beam.formats.trajectories.reading_back import open_replay
from rlds_beam.output.checksums import Checksum, checksum_files
from rlds_beam.testing import flip_byte, make_episode, read_items, shard_paths, write_dataset

FLAGS = ("--shards=3", "--max_rejected=1")


@pytest.fixture
def dataset(tmp_path):
    """One of its episodes is rejected."""
    return write_dataset(tmp_path / "data", [*episodes(), make_episode(STEPS, breaks=["last_not_last"])])


@pytest.fixture
def output(dataset, convert_only):
    assert convert_only(dataset, *FLAGS).code == 0
    return convert_only(dataset, *FLAGS).output


def read_manifest(output: Path) -> dict[str, Any]:
    return json.loads((output / "manifest.json").read_text())


def shards_of(output: Path) -> list[Path]:
    return [path for path in shard_paths(output) if path.suffix != ".spec"]


def make_old(output: Path) -> None:
    """Rewrites an output as the versions before XXH3 left it: `sha256` in its commits and in its manifest."""
    contents = [path.read_bytes() for path in output.rglob("*") if path.is_file()]
    sha256 = {f"xxh3-128:{xxhash.xxh3_128_hexdigest(data)}": hashlib.sha256(data).hexdigest() for data in contents}
    for path in (*(output / "_commits").iterdir(), output / "manifest.json"):
        old = re.sub(r'"checksum": "(.*)"', lambda match: f'"sha256": "{sha256[match[1]]}"', path.read_text())
        path.write_text(old)
    (output / "checksums.xxh128").unlink()


def check(command: str, output: Path) -> subprocess.CompletedProcess[str]:
    """`xxh128sum --check checksums.xxh128`, or the same with sha256sum, in the output directory."""
    if shutil.which(command) is None:
        pytest.skip(f"{command} is not installed (Debian: apt-get install xxhash)")
    file = f"checksums.{command.removesuffix('sum')}"
    return subprocess.run([command, "--check", file], cwd=output, capture_output=True, text=True, timeout=60)


def test_a_checksum_names_its_algorithm():
    checksum = Checksum()
    checksum.update(b"ab")
    checksum.update(memoryview(b"c"))
    assert str(checksum) == f"xxh3-128:{xxhash.xxh3_128_hexdigest(b'abc')}"
    old = Checksum.like("sha256:00")
    old.update(b"abc")
    assert str(old) == f"sha256:{hashlib.sha256(b'abc').hexdigest()}"


def test_the_usual_command_checks_an_output(output):
    checked = check("xxh128sum", output)
    assert checked.returncode == 0, checked.stderr
    files = [*(path.name for path in shards_of(output)), "rejected/train-00002-of-00003.tfrecord"]
    assert sorted(line for line in checked.stdout.splitlines() if line) == sorted(f"{name}: OK" for name in files)
    flip_byte(shards_of(output)[1], 0, "payload", at=3)
    checked = check("xxh128sum", output)
    assert checked.returncode == 1
    assert f"{shards_of(output)[1].name}: FAILED" in checked.stdout


def test_files_without_records_are_not_listed():
    entries = [{"file": name, "records": n, "checksum": "sha256:0f"} for n, name in enumerate("ab")]
    assert checksum_files(entries) == {"checksums.sha256": "0f  b\n"}
    assert checksum_files([]) == {}


def test_an_output_of_an_earlier_version_is_read(output, dataset, convert_only):
    items = read_items(output)
    make_old(output)
    old = {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}
    replay = open_replay(str(output))
    assert replay.items == sum(len(batch) for work in replay.ranges for batch in replay.read_items(work)) == len(items)
    assert len(items) == EPISODES * (STEPS - 1)
    assert "nothing was left to do" in convert_only(dataset, *FLAGS).out
    assert {path: path.read_bytes() for path in output.rglob("*") if path.is_file()} == old


def test_an_output_of_an_earlier_version_is_loaded(output):
    pytest.importorskip("tf_agents")
    make_old(output)
    assert len(list(load_trajectories(str(output)))) == EPISODES * (STEPS - 1)


def test_items_of_an_earlier_version_keep_their_keys(output):
    """The fingerprint, from which the keys follow, as it was computed before."""
    make_old(output)
    manifest = read_manifest(output)
    content = [manifest["fields"], [(shard["split"], shard["sha256"]) for shard in manifest["shards"]]]
    assert open_replay(str(output)).fingerprint == hashlib.sha256(json.dumps(content).encode()).hexdigest()


@pytest.mark.parametrize("age", ["new", "old"])
def test_records_in_another_order_are_an_error(output, age):
    """Each of them is sound, and the file is as long as the one that was written."""
    if age == "old":
        make_old(output)
    replay = open_replay(str(output))
    shard, records = shards_of(output)[0], replay.ranges[0].items
    data = shard.read_bytes()
    size = len(data) // records
    shard.write_bytes(data[size:] + data[:size])
    with pytest.raises(RldsBeamError, match=f"{shard.name} is not the file that was written"):
        list(replay.read_items(replay.ranges[0]))


def test_a_half_finished_output_of_an_earlier_version_is_continued(output, dataset, convert_only):
    before = {path.name: path.read_bytes() for path in shards_of(output)}
    make_old(output)
    lost, *kept = shards_of(output)
    for path in (output / "manifest.json", output / "_commits" / "train-00000-of-00003.json", lost):
        path.unlink()
    written = [path.stat().st_mtime_ns for path in kept]
    assert convert_only(dataset, *FLAGS).code == 0
    assert [path.stat().st_mtime_ns for path in kept] == written
    assert {path.name: path.read_bytes() for path in shards_of(output)} == before
    algorithms = [shard["checksum"].partition(":")[0] for shard in read_manifest(output)["shards"]]
    assert algorithms == ["xxh3-128", "sha256", "sha256"]
    for command, files in (("sha256sum", 3), ("xxh128sum", 1)):
        checked = check(command, output)
        assert (checked.returncode, checked.stdout.count(": OK")) == (0, files)
    replay = open_replay(str(output))
    assert sum(len(batch) for work in replay.ranges for batch in replay.read_items(work)) == EPISODES * (STEPS - 1)


def test_a_checksum_of_a_later_version_is_refused_before_anything_is_read(output):
    text = (output / "manifest.json").read_text()
    (output / "manifest.json").write_text(text.replace("xxh3-128:", "xxh4-256:"))
    with pytest.raises(UsageError, match=r"xxh4-256:.* is not of xxh3-128 or sha256.*install that version"):
        open_replay(str(output))
