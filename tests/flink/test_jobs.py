"""convert, check and push on a real Flink cluster: the same bytes, items and metrics as on one machine."""

from __future__ import annotations

import json
import re
from pathlib import Path

import psutil
import pytest
import reverb
from directories import bytes_of
from jobs import complaints, result_of
from processes import DEADLINE, members, running
from pushes import PAIRS, arguments, dataset, due, held, look, one_table

from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, write_dataset

pytestmark = pytest.mark.timeout(900)
JOB_SECONDS = 600.0
MORE = (("second", range(200, 210)), ("third", range(300, 306)))
FLAGS = ("--shards=6", "--repair=missing_is_last", "--max_rejected=1")


@pytest.fixture(scope="module")
def source(tmp_path_factory) -> Path:
    """Episodes, of which one breaks a rule, one can be repaired, and one is a duplicate."""
    episodes = [make_episode(40, seed=i) for i in range(20)]
    broken = [make_episode(9, seed=100, breaks=["non_finite"]), make_episode("F" + " M" * 30, seed=9)]
    return write_dataset(tmp_path_factory.mktemp("data"), [*episodes, *broken], shards=2)


def test_convert(cluster, source, tmp_path, capsys) -> None:
    assert main(["convert", str(source), str(tmp_path / "here"), *FLAGS]) == 0
    capsys.readouterr()
    command = ["convert", str(source), str(tmp_path / "there"), *FLAGS, "--json"]
    assert main([*command, *cluster.flags()]) == 0
    report = json.loads(capsys.readouterr().out)
    assert bytes_of(tmp_path / "there") == bytes_of(tmp_path / "here")
    # The workers' metrics came back.
    assert report["steps_this_run"] == report["steps"] == 20 * 40 + 31
    assert report["working_seconds"] > 0 and report["peak_memory_mb"] > 10
    # All the work was done on the cluster, by both TaskManagers.
    job = cluster.get(f"/jobs/{cluster.jobs()[0]['jid']}")
    assert job["state"] == "FINISHED"
    assert {vertex["parallelism"] for vertex in job["vertices"] if "Process convert" in vertex["name"]} == {2}
    before = len(cluster.jobs())
    assert main([*command, *cluster.flags()]) == 0  # nothing is left to do and no worker is needed
    assert len(cluster.jobs()) == before


def test_merge_and_append(cluster, source, tmp_path) -> None:
    """Two formats become one dataset, which grows by a third."""
    others = [
        write_dataset(tmp_path / name, [make_episode(30, seed=i) for i in seeds], shards=2) for name, seeds in MORE
    ]
    lerobot = tmp_path / "lerobot"
    assert main(["convert", str(others[0]), str(lerobot), "--to=lerobot", "--fps=10"]) == 0
    fields = tmp_path / "fields.yaml"
    fields.write_text("inputs: []")
    options = [
        "--to=lerobot",
        "--fps=10",
        "--max_rejected=1",
        "--repair=missing_is_last",
        f"--merge_fields={fields}",
        "--shards=4",
    ]
    for out, flags in (("here", []), ("there", cluster.flags())):
        output = str(tmp_path / out)
        assert main(["convert", str(source), str(lerobot), output, *options, *flags]) == 0
        assert main(["convert", str(source), str(lerobot), str(others[1]), output, *options, "--append", *flags]) == 0
    assert bytes_of(tmp_path / "there") == bytes_of(tmp_path / "here")


def test_record(cluster, tmp_path, capsys) -> None:
    pytest.importorskip("gymnasium")
    flags = [
        "--env=recorded_environments:walk",
        "--policy=random",
        "--episodes=60",
        "--json",
        "--policy=EpsilonGreedyHead(recorded_environments:Remembering, epsilon=0.3)",
    ]
    assert main(["record", str(tmp_path / "here"), *flags]) == 0
    capsys.readouterr()
    assert main(["record", str(tmp_path / "there"), *flags, *cluster.flags()]) == 0
    assert json.loads(capsys.readouterr().out)["episodes"] == 120
    assert bytes_of(tmp_path / "there") == bytes_of(tmp_path / "here")
    job = cluster.get(f"/jobs/{cluster.jobs()[0]['jid']}")
    assert job["state"] == "FINISHED"


def test_validate(cluster, source, tmp_path, capsys) -> None:
    reports = []
    for where, flags in (("here", []), ("there", cluster.flags())):
        path = tmp_path / f"{where}.json"
        assert main(["check", "--rules", str(source), "--json", f"--report={path}", *flags]) == 3
        printed = result_of(capsys.readouterr().out)
        assert printed == json.loads(path.read_text())
        reports.append(printed)
    assert reports[0] == reports[1]
    assert reports[0]["records"] == 22


def test_a_rule_that_fails_the_job(cluster, source, capsys) -> None:
    """The cause is one line in our words; Flink has retried as often as configured."""
    assert main(["check", "--rules", str(source), "--fail=non_finite", *cluster.flags()]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("rlds-beam: ") and "non_finite" in captured.err
    assert len(complaints(captured.err)) == 1
    assert "Exception" not in captured.err


def test_push(cluster, tmp_path, capsys) -> None:
    data = dataset(tmp_path)
    server = reverb.Server(one_table())
    address = f"127.0.0.1:{server.port}"
    for inserts in (PAIRS, PAIRS):  # the second time nothing is new
        assert main([*arguments(data, [address], f"--report={tmp_path / 'r.json'}"), *cluster.flags()]) == 0
        report = result_of(capsys.readouterr().out)
        assert report == result_of((tmp_path / "r.json").read_text())
        (table,) = report["tables"]
        assert table["predicted"] == table["acknowledged"] == report["items_written"] == PAIRS
        assert report["steps_this_run"] > PAIRS
        assert look(address).current_size == inserts
    assert held(address) == due()
    assert [*(cluster.home / "shared").iterdir()] == []  # through which the result came
    server.stop()


def test_its_url_and_its_sockets(cluster, gate, source, tmp_path) -> None:
    """The URL of the job is printed at once. Our processes listen on loopback; Beam's Java job server does not."""
    gate.close(tmp_path / "out")
    flags = [flag for flag in cluster.flags() if flag != "--progress=none"]
    command = ["convert", str(source), str(tmp_path / "out"), "--policy_info_fn=flink_gate:hold", "--shards=6"]
    with running([*command, "--accept=duplicate_episode", "--max_rejected=5", *flags]) as process:
        cluster.wait_until(lambda: gate.waiting() or process.poll() is not None)
        assert process.poll() is None, process.communicate(timeout=DEADLINE)
        assert process.stderr is not None
        job = cluster.jobs()[0]["jid"]
        url = f"http://{cluster.address}/#/job/{job}/overview"
        said: list[str] = []
        while not said and (line := process.stderr.readline()):  # progress comes first
            said = complaints(line)
        assert [line.partition(" ")[2] for line in said] == [f"rlds-beam: Flink job {job}, {url}"]  # after the time
        elsewhere = []  # the programs that listen on other interfaces
        for one in map(psutil.Process, [*members(process.pid), *cluster.pools_and_workers()]):
            listening = [c.laddr.ip for c in one.net_connections("tcp") if c.status == psutil.CONN_LISTEN]
            elsewhere += [one.name() for ip in listening if not re.fullmatch(r"(::ffff:)?127\..*|::1", ip)]
        assert elsewhere in (["java"], ["java"] * 2)  # for jobs and for artifacts; the expansion service is off
        gate.open()
        out, err = process.communicate(timeout=JOB_SECONDS)
        assert process.returncode == 0, out + err
