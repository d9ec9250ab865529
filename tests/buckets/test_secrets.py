"""No secret is printed, written, logged, or seen by `ps`: tokens, keys, passwords in addresses, signed addresses."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from bucket_servers import Server, content, serving, upload
from hub_server import TOKEN, HubServer, hub_server
from processes import run

from rlds_beam.testing import make_episode, write_dataset

SECRET = "S3CR3T"
AUDIT = """
import os, sys
def note(event, arguments):
    if event == "subprocess.Popen":
        with open({log!r}, "a") as file:
            print(arguments[1], file=file)
sys.addaudithook(note)
"""
"""Notes the arguments of every process that one of our processes starts, which all users of a machine can read."""


class Commands:
    """Runs commands with secrets in their environment.

    Attributes:
      environment: the variables.
      seen: all that was printed, and the arguments of the processes.
      home: the directory of all files.
    """

    def __init__(self, home: Path, s3: Server, hub: HubServer):
        (home / "site").mkdir()
        self._log = home / "started.txt"
        (home / "site" / "sitecustomize.py").write_text(AUDIT.format(log=str(self._log)))
        self.home, self.seen = home, ""
        self.environment = {
            **os.environ,
            **s3.environment,
            **hub.environment(home / "hf_home", TOKEN),
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_SESSION_TOKEN": SECRET,
            "HF_HUB_DISABLE_XET": "1",
            "PYTHONPATH": f"{home / 'site'}:{os.environ.get('PYTHONPATH', '')}",
        }

    def run(self, *arguments: object, code: int = 0, **environment: str) -> str:
        found, out, err = run(arguments, env={**self.environment, **environment})
        self.seen += out + err
        assert found == code, out + err
        return out + err

    def check(self) -> None:
        started = self._log.read_text()
        assert "rlds_beam.runners.local" in started
        files = {path: path.read_bytes() for path in self.home.rglob("*") if path.is_file()}
        self.check_files({str(path): data for path, data in files.items()})
        for secret in (SECRET, TOKEN):
            assert secret not in self.seen and secret not in started, [
                {re.sub(r"\d+", "0", line)[:300] for line in (self.seen + started).splitlines() if secret in line}
            ]

    def check_files(self, files: dict[str, bytes]) -> None:
        assert files
        leaks = [name for name, data in files.items() if SECRET.encode() in data or TOKEN.encode() in data]
        assert not leaks


@pytest.fixture(scope="module")
def s3() -> Iterator[Server]:
    with serving("s3") as server:
        yield server


def test_no_secret_is_shown(s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = write_dataset(tmp_path / "data", [make_episode(20, seed=i) for i in range(8)], shards=4)
    with hub_server() as hub:
        commands = Commands(tmp_path, s3, hub)
        for name, value in commands.environment.items():
            monkeypatch.setenv(name, value)
        bucket = upload(data, f"{s3.new_bucket()}/data")
        there = hub.add(data, "robots/in")
        out, published = f"{bucket[:-5]}/out", "hf://datasets/robots/out"
        commands.run("convert", bucket, out, "--items=frames", "--workers=2", "-v", "--json")
        commands.run("check", "--rules", bucket, "-v")
        commands.run("convert", there, tmp_path / "out", "--to=rlds", "--workers=2", "-v")
        commands.run("upload", tmp_path / "out", published, "-v", "--json")
        commands.run("check", "--rules", published, "-v", "--json")
        # Errors
        password = f"http://user:{SECRET}@{s3.url.partition('//')[2]}"
        commands.run("check", "--rules", "s3://nothing/x", "-v", code=2, AWS_ENDPOINT_URL=password)
        commands.run(
            "check",
            "--rules",
            "s3://nothing/x",
            "--json",
            code=2,
            AWS_ENDPOINT_URL=f"http://user:{SECRET}@127.0.0.1:1",
        )
        address = f"http://user:{SECRET}@{hub.url.partition('//')[2]}"
        commands.run("upload", tmp_path / "out", published, "--json", code=2, HF_ENDPOINT=address)
        commands.check()
        commands.check_files(content(out))
        for repo in hub.repos.values():
            commands.check_files({name: blob.content for name, blob in repo.files.items()})
