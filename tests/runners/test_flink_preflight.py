"""The checks before a job is submitted to a Flink cluster, and their messages. No cluster is needed."""

from __future__ import annotations

import http.server
import json
import os
import stat
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import apache_beam
import pytest
from apache_beam.utils.subprocess_server import JavaJarServer
from jobs import dataset
from servers import free_port

from rlds_beam.cli.main import main
from rlds_beam.errors import UsageError
from rlds_beam.runners import flink_preflight
from rlds_beam.runners.base import RunOptions
from rlds_beam.runners.flink_preflight import preflight


class Rest(http.server.BaseHTTPRequestHandler):
    """A server that answers `/overview` like a JobManager's REST interface, or with other content."""

    answer = b""

    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/overview" else 404)
        self.end_headers()
        self.wfile.write(type(self).answer)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def master() -> Iterator[str]:
    overview("2.2.0", 4)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Rest) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()


def overview(version: str, slots: int) -> None:
    Rest.answer = json.dumps({"flink-version": version, "slots-total": slots, "taskmanagers": 1}).encode()


def program(path: Path, script: str) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)


@pytest.fixture
def java(tmp_path, monkeypatch) -> Path:
    """A PATH with only Java 17 on it."""
    program(tmp_path / "bin" / "java", "echo 'openjdk version \"17.0.15\" 2025-04-15' >&2")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    return tmp_path / "bin" / "java"


@pytest.fixture
def jar(tmp_path) -> str:
    return make_jar(tmp_path / "job-server.jar")


def make_jar(path: Path, manifest: str = "Main-Class: JobServer\r\n") -> str:
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("META-INF/MANIFEST.MF", f"Manifest-Version: 1.0\r\n{manifest}")
    return str(path)


def options(master: str | None, jar: str | None = None, **others: object) -> RunOptions:
    # A pool at another host name is not checked from here: TaskManagers connect to it.
    pool = {"environment_config": "sdk-workers:50000"}
    return RunOptions(runner="flink", flink_master=master, flink_job_server_jar=jar, **{**pool, **others})  # type: ignore[arg-type]


def refusal(given: RunOptions) -> str:
    with pytest.raises(UsageError) as raised:
        preflight(given)
    assert raised.value.exit_code == 2
    return str(raised.value)


def test_all_is_well(master, java, jar) -> None:
    assert preflight(options(master, jar)).flags == (
        f"--flink_master=http://{master}",
        "--flink_version=2.2",
        f"--job_server_java_launcher={java}",
        "--parallelism=4",
        "--environment_type=EXTERNAL",
        "--environment_config=sdk-workers:50000",
        f"--flink_job_server_jar={jar}",
    )
    overview("1.19.3", 2)
    given = options(f"http://{master}/", jar, parallelism=1, environment_type="DOCKER", environment_config="me/image:1")
    flags = preflight(given).flags
    assert {"--flink_version=1.19", "--parallelism=1", "--environment_type=DOCKER"} <= set(flags)


def test_java(master, java, jar) -> None:
    program(java, "echo 'openjdk version \"1.8.0_392\"' >&2")
    assert "is Java 8; Beam's job server for Flink needs 11 or later" in refusal(options(master, jar))
    program(java, "echo 'no such module' >&2; exit 1")
    assert "is not a working Java" in refusal(options(master, jar))
    java.unlink()
    said = refusal(options(master, jar))
    assert "no java on the PATH" in said and "apt install" in said


def test_the_master(master, java, jar) -> None:
    assert "--flink_master=HOST:PORT" in refusal(options(None, jar))
    closed = f"127.0.0.1:{free_port()}"
    said = refusal(options(closed, jar))
    assert f"no Flink JobManager answers at http://{closed}" in said and "refused" in said and "8081" in said
    Rest.answer = b"<html>"
    assert "is not Flink's REST interface" in refusal(options(master, jar))
    overview("1.17.2", 1)
    said = refusal(options(master, jar))
    assert f"is Flink 1.17.2; Beam {apache_beam.__version__} runs on Flink 1.19" in said
    overview("2.2.0", 0)
    assert "no TaskManager has registered" in refusal(options(master, jar))
    overview("2.2.0", 2)
    assert "--parallelism=3" in refusal(options(master, jar, parallelism=3))


def test_the_workers(master, java, jar) -> None:
    closed = f"localhost:{free_port()}"
    said = refusal(options(master, jar, environment_config=closed))
    assert f"no worker pool answers at {closed}" in said and "python -m rlds_beam.runners.worker_pool --port=" in said
    assert "expected HOST:PORT" in refusal(options(master, jar, environment_config="pool"))
    docker = options(master, jar, environment_type="DOCKER", environment_config=None)
    assert "an image that contains rlds-beam" in refusal(docker)
    assert "use --parallelism" in refusal(options(master, jar, workers=2))


def test_a_jar_that_is_named(master, java, tmp_path) -> None:
    assert "there is no such file" in refusal(options(master, str(tmp_path / "none.jar")))
    (tmp_path / "torn.jar").write_bytes(b"PK")
    assert "not a readable jar" in refusal(options(master, str(tmp_path / "torn.jar")))
    assert "has no main class" in refusal(options(master, make_jar(tmp_path / "thin.jar", "")))


@pytest.fixture
def offline(monkeypatch, tmp_path) -> Path:
    """Makes Beam's own download fail; returns its cache directory."""
    for repository in ("MAVEN_CENTRAL_REPOSITORY", "GOOGLE_MAVEN_MIRROR"):
        monkeypatch.setattr(JavaJarServer, repository, f"http://127.0.0.1:{free_port()}")
    monkeypatch.setattr(JavaJarServer, "JAR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


ARTIFACT = f"beam-runners-flink-2.2-job-server-{apache_beam.__version__}.jar"


def test_a_jar_by_maven(master, java, offline, tmp_path) -> None:
    """Maven is run once, for the artifact of this Beam and Flink version."""
    made = make_jar(tmp_path / "made.jar")
    program(
        java.parent / "mvn",
        f'echo "$@" >>{tmp_path}/asked; for a; do case $a in -DoutputDirectory=*) '
        f"/bin/cp {made} ${{a#-DoutputDirectory=}}/{ARTIFACT};; esac; done",
    )
    for _ in range(2):
        assert f"--flink_job_server_jar={offline / ARTIFACT}" in preflight(options(master)).flags
    (asked,) = (tmp_path / "asked").read_text().splitlines()
    assert f"-Dartifact=org.apache.beam:beam-runners-flink-2.2-job-server:{apache_beam.__version__}" in asked
    assert os.listdir(offline) == [ARTIFACT]


def test_a_jar_that_cannot_be_downloaded(master, java, offline) -> None:
    said = refusal(options(master))
    assert "no mvn on the PATH" in said
    assert "--flink_job_server_jar=PATH" in said
    program(java.parent / "mvn", "echo '[ERROR] Could not find artifact x in central -> [Help 1]'; exit 1")
    said = refusal(options(master))
    assert "Maven (Could not find artifact x in central)" in said
    assert os.listdir(offline) == []
    program(java.parent / "mvn", "exit 3")
    assert "it exited with 3" in refusal(options(master))


def test_maven_that_hangs(master, java, offline, monkeypatch) -> None:
    monkeypatch.setattr(flink_preflight, "_MAVEN_SECONDS", 0.2)
    program(java.parent / "mvn", "exec /bin/sleep 60")
    assert "it took more than 0.2 s" in refusal(options(master))


def test_flags_of_another_runner() -> None:
    for flag in ({"flink_master": "a:1"}, {"parallelism": 2}, {"environment_config": "a:1"}):
        with pytest.raises(UsageError, match="needs --runner=flink, not --runner=local"):
            RunOptions(**flag)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="at least 1"):
        RunOptions(runner="flink", parallelism=0)


@pytest.mark.parametrize("command", ["convert", "push"])
def test_dry_run_checks_but_downloads_nothing(command, master, java, offline, tmp_path, capsys) -> None:
    source = str(dataset(tmp_path))
    where = [str(tmp_path / "out")] if command == "convert" else ["--reverb=127.0.0.1:1", "--table=t"]
    flags = ["--dry_run", "--runner=flink", "--environment_config=sdk-workers:50000"]
    closed = f"127.0.0.1:{free_port()}"
    assert main([command, source, *where, *flags, f"--flink_master={closed}"]) == 2
    assert f"no Flink JobManager answers at http://{closed}" in capsys.readouterr().err
    if command == "convert":  # push also checks the tables, which do not exist here
        assert main([command, source, *where, *flags, f"--flink_master={master}"]) == 0
    assert not offline.exists()


def test_nothing_is_done_before(convert, tmp_path) -> None:
    ran = convert(dataset(tmp_path), "--runner=flink", f"--flink_master=127.0.0.1:{free_port()}")
    ran.assert_nothing_done("no Flink JobManager answers")
