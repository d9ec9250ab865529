"""Checkpoints of served tables, intact and damaged, and the server process."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import DEADLINE
from serving import Serve, a_table, refused

from rlds_beam.errors import NotVerifiedError, RldsBeamError, UsageError
from rlds_beam.pipelines.serve import read_spec
from rlds_beam.reverb.serving.checkpoints import find_checkpoint, read_sizes, read_tables, settle
from rlds_beam.reverb.serving.served_tables import ServedTable
from rlds_beam.reverb.serving.server import EmbeddedServer, verify_checkpoint
from rlds_beam.testing import make_episode, write_dataset
from rlds_beam.trajectories.options import FrameOptions
from rlds_beam.trajectories.spec import TrajectorySpec


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("rlds"), [make_episode(5, seed=i) for i in range(4)])


@pytest.fixture(scope="module")
def spec(dataset) -> TrajectorySpec:
    return read_spec(str(dataset), FrameOptions())


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """A checkpoint of two tables without signatures: `replay` with 7 items, `line` with 3 of them."""
    import reverb

    root = tmp_path_factory.mktemp("checkpoint")
    tables = [a_table("replay"), reverb.Table.queue("line", 100)]
    server = reverb.Server(tables, checkpointer=reverb.checkpointers.DefaultCheckpointer(str(root)))
    client = reverb.Client(f"localhost:{server.port}")
    for i in range(7):
        client.insert([np.full(3, i, np.float32)], {"replay": 1.0, **({"line": 1.0} if i < 3 else {})})
    path = Path(client.checkpoint())
    server.stop()
    return path


# Checkpoints


def held(address: str, table: str) -> list[bytes]:
    """The sorted contents of a table's items, read by a sampler that does not wait for more."""
    import reverb

    client = reverb.Client(address)
    size = client.server_info(timeout=60)[table].current_size
    found: dict[int, bytes] = {}
    while len(found) < size:
        for (sample,) in client.sample(table, 64, emit_timesteps=True):
            found[sample.info.key] = b"".join(np.asarray(c).tobytes() for c in sample.data)
    return sorted(found.values())


def test_a_checkpoint_is_served_by_the_next_run(dataset, tmp_path, checkpoint):
    """A checkpoint is written at the end and loaded by the next run, whose server is killed."""
    root, again = tmp_path / "root", f"--checkpoint={tmp_path / 'root'}"
    with Serve(f"--load={checkpoint}", again) as command:
        command.wait_ready(2)
        assert f"loaded    {checkpoint}" in command.text
        assert "replay: uniform, 7 items" in command.text and "line: queue, 3 items" in command.text
        content = held(command.address, "replay")
        assert content == sorted(np.full(3, i, np.float32).tobytes() for i in range(7))
        code, out, err = command.end(signal.SIGTERM)
    assert (code, err) == (0, "")
    (written,) = root.iterdir()
    assert f"wrote     {written}: 3 items in line, 7 items in replay; verified" in out
    with Serve(f"--like={dataset}", "--tables=more:uniform", again) as command:
        command.wait_ready(3)
        assert held(command.address, "replay") == content
        assert "more: uniform, 0 items" in command.text
        os.kill(command.server, signal.SIGKILL)
        code, out, err = command.end()
    assert (code, out) == (1, "")
    assert err.startswith("rlds-beam: the Reverb server ended, and its items are lost: exit code -9")


def test_the_server_ends_when_its_parent_is_killed(checkpoint):
    script = f"""
import os, signal
from rlds_beam.reverb.serving.server import EmbeddedServer
with EmbeddedServer((), None, load={str(checkpoint)!r}) as server:
    print(server.address, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""
    run = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, timeout=DEADLINE, check=False
    )
    assert run.returncode == -signal.SIGKILL
    host, _, port = run.stdout.strip().rpartition(":")
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), 1).close()
        except ConnectionRefusedError:
            return
        except TimeoutError:  # no process accepts it, but the port still listens
            continue
        time.sleep(0.05)
    raise AssertionError("the server is still running")


def test_a_checkpoint_is_verified(checkpoint, tmp_path):
    verify_checkpoint(str(checkpoint), {"replay": 7, "line": 3})
    with pytest.raises(NotVerifiedError, match="7 items in table 'replay', not 8"):
        verify_checkpoint(str(checkpoint), {"replay": 8})
    with pytest.raises(NotVerifiedError, match="no table 'other'"):
        verify_checkpoint(str(checkpoint), {"other": 0})
    damaged = shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    chunks = damaged / "chunks.tfrecord"
    chunks.write_bytes(chunks.read_bytes()[:-20])
    with pytest.raises(NotVerifiedError, match="could not be verified: the Reverb server did not start"):
        verify_checkpoint(str(damaged), {"replay": 7})


def test_a_checkpoint_without_done_is_refused(checkpoint, tmp_path, capsys):
    """Reverb would silently start empty."""
    unfinished = shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    (unfinished / "DONE").unlink()
    for path in (unfinished, tmp_path):
        assert "no finished checkpoint" in refused(capsys, f"--load={path}")
    with pytest.raises(NotVerifiedError, match="no finished checkpoint"):
        verify_checkpoint(str(unfinished), {"replay": 7})
    with pytest.raises(NotVerifiedError, match="lacks DONE"):
        settle(str(unfinished))
    older = shutil.copytree(checkpoint, tmp_path / "2001-01-01T00:00:00.0+00:00")
    assert find_checkpoint(str(tmp_path)) == str(older)


def test_a_checkpoint_with_other_tables_is_refused(checkpoint, spec, capsys):
    def start(table: ServedTable, spec: TrajectorySpec | None = None) -> None:
        EmbeddedServer([table], spec, load=str(checkpoint))

    with pytest.raises(UsageError, match=r"'replay' of .* holds other items: it has no signature"):
        start(ServedTable("replay"), spec)
    with pytest.raises(UsageError, match=r"'line' of .* is queue, not stack"):
        start(ServedTable("line", "stack"))
    with pytest.raises(UsageError, match=r"'line' of .* has room for 100 items, not 101"):
        start(ServedTable("line", "queue", 101))
    assert "'new'" in refused(capsys, f"--load={checkpoint}", "--tables=new:uniform")


def test_one_of_two_checkpoints(checkpoint, tmp_path, capsys):
    shutil.copytree(checkpoint, tmp_path / "2001-01-01T00:00:00.0+00:00")
    assert "omit --load" in refused(capsys, f"--load={checkpoint}", f"--checkpoint={tmp_path}")


def test_a_checkpoint_that_cannot_be_read(checkpoint, tmp_path, capsys):
    damaged = shutil.copytree(checkpoint, tmp_path / checkpoint.name)
    (damaged / "tables.tfrecord").write_bytes(b"no")
    assert "tables.tfrecord" in refused(capsys, f"--load={damaged}")


@pytest.mark.parametrize("name", ["notes.txt", "zzz", "2001-01-01T00:00:00+00:00/mine"])
def test_a_checkpoint_directory_with_other_content_is_refused_because_reverb_would_delete_it(tmp_path, name, capsys):
    import reverb

    def fill(directory: Path) -> Path:
        precious = directory / name
        precious.parent.mkdir(parents=True)
        precious.write_text("years of work")
        return precious

    theirs, ours = fill(tmp_path / "theirs"), fill(tmp_path / "ours")
    server = reverb.Server([a_table()], checkpointer=reverb.checkpointers.DefaultCheckpointer(str(tmp_path / "theirs")))
    written = reverb.Client(f"localhost:{server.port}").checkpoint()
    assert theirs.exists() != os.path.exists(written)  # it keeps the last name in alphabetical order
    text = refused(capsys, "--tables=a:uniform", f"--checkpoint={tmp_path / 'ours'}")
    assert name.split("/")[0] in text and "Reverb deletes" in text
    assert ours.exists()


def test_sizes_equal_those_reverb_reports(tmp_path):
    """After any operation on a table, and after loading a checkpoint."""
    import reverb

    def serve() -> tuple[Any, Any]:
        tables = [a_table(max_size=5), a_table("other"), reverb.Table.queue("line", 10)]
        server = reverb.Server(tables, checkpointer=reverb.checkpointers.DefaultCheckpointer(str(tmp_path)))
        return server, reverb.Client(f"localhost:{server.port}")

    def agrees(client: Any) -> dict[str, int]:
        sizes = {name: table.current_size for name, table in client.server_info(timeout=60).items()}
        assert read_sizes(read_tables(client.checkpoint())) == sizes
        return sizes

    server, client = serve()
    assert agrees(client) == {"replay": 0, "other": 0, "line": 0}
    for i in range(9):
        client.insert([np.full(3, i)], {"replay": 1.0, "other": 2.0, "line": 1.0})
    list(client.sample("line", 4))
    (sample,) = next(client.sample("other", 1))
    client.mutate_priorities("other", deletes=[sample.info.key])
    assert agrees(client) == {"replay": 5, "other": 8, "line": 5}
    client.reset("replay")
    assert agrees(client) == {"replay": 0, "other": 8, "line": 5}
    server.stop()
    server, client = serve()
    client.insert([np.full(3, 0)], {"replay": 1.0})
    assert agrees(client) == {"replay": 1, "other": 8, "line": 5}


# The server process


def test_it_starts_while_other_work_is_done(checkpoint):
    with EmbeddedServer([ServedTable("line", "queue", 100)], None, load=str(checkpoint)) as server:
        with pytest.raises(RldsBeamError, match=r"not up within 0\.01 s \(it is still running"):
            server.wait_ready(0.01)
        info = server.wait_ready()
        assert read_sizes(info.tables) == read_sizes(server.loaded) == {"replay": 7, "line": 3}
        with pytest.raises(UsageError, match="--checkpoint"):
            server.checkpoint(DEADLINE)
        server.check()
    with pytest.raises(RldsBeamError, match="not running"):
        server.info(1)


def test_a_server_that_does_not_come_up_says_why(monkeypatch, spec):
    monkeypatch.setenv("PYTHONPATH", os.devnull)
    monkeypatch.setattr(sys, "executable", shutil.which("false"))
    with EmbeddedServer([ServedTable("replay")], spec) as server:
        with pytest.raises(RldsBeamError, match="did not start: exit code 1"):
            server.wait_ready()
        with pytest.raises(RldsBeamError, match="ended"):
            server.check()
