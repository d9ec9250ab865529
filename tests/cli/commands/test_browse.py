"""The command: its address, its end, and what it refuses."""

from __future__ import annotations

import os
import re
import signal
import socket
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from browsing import httpx
from processes import DEADLINE, running, wait_until

from rlds_beam.cli.main import main
from rlds_beam.testing import make_episode, write_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_dataset(tmp_path_factory.mktemp("rlds"), [make_episode(5, seed=i) for i in range(3)])


def address(process: subprocess.Popen[str]) -> str:
    """The address that the command prints."""
    assert process.stdout is not None
    for line in iter(process.stdout.readline, ""):
        if match := re.search(r"http://127\.0\.0\.1:\d+/\?token=\S+", line):
            return match[0]
    raise AssertionError(process.stderr and process.stderr.read())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_interrupted(dataset: Path, number: int) -> None:
    with running(["browse", dataset]) as process:
        url = address(process)
        with httpx.Client(timeout=DEADLINE) as client:
            assert client.get(url).status_code == 200
            assert client.get(url.partition("?")[0] + "api/datasets").json()[0]["episodes"] == 3
            process.send_signal(number)  # while the connection is open
            _, err = process.communicate(timeout=DEADLINE)
        assert (process.returncode, err) == (0, "")


def test_the_token_is_not_in_the_arguments_of_the_web_browser(dataset: Path, tmp_path: Path) -> None:
    """Every user of the machine can read them."""
    browser, home = tmp_path / "browser", tmp_path / "home"
    home.mkdir()
    browser.write_text('#!/bin/sh\necho "$1" > "$0.part" && mv "$0.part" "$0.arguments"\n')
    browser.chmod(0o700)
    reading, terminal = os.openpty()
    environment = {**os.environ, "BROWSER": f"{browser} %s", "DISPLAY": ":0", "HOME": str(home)}
    with running(["browse", dataset], stdout=terminal, env=environment) as process:
        given = browser.with_name("browser.arguments")
        wait_until(given.exists, process)
        (page,) = home.iterdir()
        assert given.read_text() == f"{page.as_uri()}\n"
        assert stat.S_IMODE(page.stat().st_mode) == 0o600
        (url,) = set(re.findall(r"http://[^\"]+", page.read_text()))
        assert url in os.read(reading, 10_000).decode()  # it is printed for those who open it elsewhere
        token = url.partition("token=")[2]
        shown = [path.read_bytes() for path in Path(f"/proc/{process.pid}").glob("cmdline")]
        assert len(token) >= 32 and token not in given.read_text() and token.encode() not in b"".join(shown)
        with httpx.Client(timeout=DEADLINE) as client:
            assert client.get(url).status_code == 200
        wait_until(lambda: not page.exists(), process)
        process.send_signal(signal.SIGHUP)
        assert process.wait(DEADLINE) == 0
    os.close(reading)
    os.close(terminal)


def test_a_port_that_is_taken(dataset: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["browse", str(dataset), f"--port={port}", "--no_open"]) == 2
        assert f"--port={port}" in capsys.readouterr().err
    assert main(["browse", str(dataset), "--port=70000"]) == 2


def test_the_browser_needs_neither_beam_nor_tensorflow(dataset: Path) -> None:
    code = f"""
        import sys
        from rlds_beam.cli.commands.browse import BrowseConfig, browse
        with browse(BrowseConfig.create([{str(dataset)!r}])) as server:
            server.datasets[0].about()
        assert not {{"apache_beam", "tensorflow", "tensorflow_datasets", "reverb"}} & set(sys.modules)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=DEADLINE, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
