"""Jobs on hosts that share nothing but a bucket, with hosts that fail: the same bytes as one machine."""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path

import pytest
from bucket_servers import content, upload
from host_place import JOB_SECONDS, Place
from processes import DEADLINE

from rlds_beam import storage
from rlds_beam.testing import make_episode, write_dataset

pytestmark = pytest.mark.timeout(2 * JOB_SECONDS)
EPISODES, STEPS = 40, 60
FLAGS = ("--shards=8", "--accept=duplicate_episode")
HELD = (*FLAGS, "--policy_info_fn=flink_gate:hold")
CUT_SECONDS = 20.0
BOOKKEEPING = 2_000_000
"""Bytes of requests, commits, and manifests."""


@pytest.fixture(scope="module")
def bucket(place: Place) -> str:
    return place.bucket.new_bucket()


@pytest.fixture(scope="module")
def source(place: Place, bucket: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    local = write_dataset(
        tmp_path_factory.mktemp("data"),
        [make_episode(STEPS, seed=i, observation=2000) for i in range(EPISODES)],
        shards=4,
    )
    return upload(Path(local), f"{bucket}/data/testing/1.0.0")


@pytest.fixture(scope="module")
def undisturbed(place: Place, source: str, bucket: str) -> dict[str, bytes]:
    place.run("convert", source, f"{bucket}/whole", *HELD, on_cluster=False)
    return content(f"{bucket}/whole")


def held_up(place: Place, command: list[str], output: str) -> object:
    """Starts a job whose workers wait once the first shard is committed."""
    place.gate.close(output)
    process = place.client(*command)
    place.cluster.wait_until(lambda: place.gate.waiting() or process.poll() is not None)
    assert process.poll() is None, process.communicate(timeout=DEADLINE)
    assert not storage.exists(f"{output}/manifest.json")
    return process


@pytest.mark.parametrize("to", [(), ("--to=lerobot", "--fps=10")], ids=["trajectories", "lerobot"])
def test_convert_and_append(place: Place, source: str, bucket: str, to: tuple[str, ...], tmp_path: Path) -> None:
    """The same bytes as on one machine, and nothing else is left in the bucket."""
    name = to[0][5:] if to else "trajectories"
    here, there = f"{bucket}/{name}_here", f"{bucket}/{name}_there"
    flags = ("--shards=4", *FLAGS[1:], *to)  # a range is a file of the input
    place.run("convert", source, here, *flags, on_cluster=False)
    traffic = place.traffic(lambda: place.run("convert", source, there, *flags))
    before, after = content(here), content(there)
    assert after == before
    size, read = sum(map(len, after.values())), sum(map(len, content(source).values()))
    written, sent = traffic["bucket"]  # the hosts also send each other Beam's jar
    print(f"\n{name}: input {read:,} bytes, read {sent:,}; output {size:,}, written {written:,}")
    # The files of a LeRobot dataset are put together from those of the ranges, so all is written and read twice.
    times = 2 if to else 1
    assert written < 1.1 * times * size + BOOKKEEPING
    more = write_dataset(tmp_path, [make_episode(STEPS, seed=100 + i, observation=2000) for i in range(8)], shards=2)
    other = upload(Path(more), f"{bucket}/{name}_more/testing/1.0.0")
    for output, on_cluster in ((here, False), (there, True)):
        place.run("convert", other, output, *flags, "--append", on_cluster=on_cluster)
    assert content(there) == content(here)
    assert len(content(there)) > len(before)


@pytest.mark.parametrize("flags", [[], ["--rules"]])
def test_check(place: Place, source: str, flags: list[str]) -> None:
    here, there = (place.run("check", source, *flags, on_cluster=on_cluster) for on_cluster in (False, True))
    assert here["episodes"] == there["episodes"] == EPISODES


def test_report(place: Place, source: str, bucket: str) -> None:
    for name, on_cluster in (("here", False), ("there", True)):
        place.run("report", source, f"--output={bucket}/reports/{name}/report.html", on_cluster=on_cluster)
    pages = [content(f"{bucket}/reports/{name}")["report.html"] for name in ("here", "there")]
    here, there = (re.sub(rb"rlds-beam report [^<]*", b"", page) for page in pages)  # the command is in the page
    assert here == there


def test_push_to_servers_on_two_hosts(place: Place, source: str) -> None:
    names, port = ("worker-0", "worker-1"), 9100
    flags = (f"--like={source}", f"--tables=t:queue:{EPISODES * STEPS}", "--host=0.0.0.0", f"--port={port}")
    servers = [place.start(name, sys.executable, "-m", "rlds_beam", "serve", *flags) for name in names]
    addresses = [f"{place.network[name].address}:{port}" for name in names]
    report = place.run("push", source, f"--reverb={','.join(addresses)}", "--table=t")
    assert sum(table["acknowledged"] for table in report["tables"]) == EPISODES * (STEPS - 1)
    for server in servers:
        server.terminate()
        server.wait(DEADLINE)


def test_a_host_is_killed(place: Place, source: str, bucket: str, undisturbed: dict[str, bytes]) -> None:
    output = f"{bucket}/killed"
    process = held_up(place, ["convert", source, output, *HELD, "--json"], output)
    place.cluster.kill_host(0)
    place.cluster.start_host(0)
    place.gate.open()
    _, err = process.communicate(timeout=JOB_SECONDS)
    assert process.returncode == 0, err
    assert place.cluster.was_restarted()
    assert content(output) == undisturbed


def test_a_network_is_cut(place: Place, source: str, bucket: str, undisturbed: dict[str, bytes]) -> None:
    output = f"{bucket}/cut"
    process = held_up(place, ["convert", source, output, *HELD, "--json"], output)
    place.network["worker-0"].connect(False)
    place.gate.open()
    time.sleep(CUT_SECONDS)
    place.network["worker-0"].connect(True)
    _, err = process.communicate(timeout=JOB_SECONDS)
    assert process.returncode == 0, err
    assert content(output) == undisturbed


def test_the_master_is_killed(place: Place, source: str, bucket: str, undisturbed: dict[str, bytes]) -> None:
    """The job is lost, and the command says so; the same command resumes it."""
    output = f"{bucket}/lost"
    command = ["convert", source, output, *HELD]
    process = held_up(place, command, output)
    place.cluster.kill("jobmanager")
    place.cluster.start_job_manager()
    _, err = process.communicate(timeout=JOB_SECONDS)
    place.gate.open()
    assert process.returncode == 1 and "run the same command to resume" in err
    for number in range(2):
        place.cluster.kill_host(number)
        place.cluster.start_host(number)
    place.cluster.wait_for_task_managers(2)
    place.run(*command)
    assert content(output) == undisturbed
