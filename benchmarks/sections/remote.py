"""Training batches from a bucket, against other projects' loaders and the bare loop on local files."""

from __future__ import annotations

import contextlib
import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from measuring import DATA, HERE, Figure, Measurement, Sizes, at_least, best, command, ratios, table
from sections.loading import HOME, PEERS, prepare_rlds

CACHES = DATA / "remote_caches"
SERVER = HERE.parent / "tests" / "support" / "static_s3.py"
DELAYS = (0, 10, 30)
GIGABITS = 1


LOADERS = {
    "bare": "bare loop on local files",
    "remote rlds": "batches, RLDS",
    "remote lerobot_images": "batches, LeRobot with JPEGs",
    "remote lance images": "lerobot-lancedb, JPEGs",
    "remote webdataset": "WebDataset",
}
"""Loader of `peers/loading_peer.py` -> what the table prints."""
WORKERS = 2

Runs = dict[tuple[str, int], list[Measurement]]


def remote(sizes: Sizes) -> list[Figure]:
    """The first shuffled epoch of 5,000 frames of 256x256 from a bucket: batches of 32, 1 Gbit/s, 0 to 30 ms away."""
    if not (HOME / "bin" / "rlds-beam").exists():
        print(f"\nremote: skipped, there is no {HOME} (make test-peers PEERS=loading makes it)")
        return []
    folder = prepare(sizes.of(5_000, 2_000))
    runs: Runs = {}
    for _ in range(sizes.repeats):
        for delay in DELAYS[-1:] if sizes.quick else DELAYS:
            with serving(delay) as url:
                for name in LOADERS:
                    runs.setdefault((name, delay), []).append(measure(folder, name, url))
    return report(runs)


def prepare(steps: int) -> Path:
    """The folder with the same frames in every format, which is also the bucket; made once."""
    folder = DATA / f"remote-{steps}"
    if (folder / "finished").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    prepare_rlds(folder, steps)
    link = folder / "rlds"
    target = link.resolve()
    link.unlink()
    shutil.copytree(target, link)
    images, tool = folder / "lerobot_images", HOME / "bin" / "rlds-beam"
    command([tool, "convert", link, images, "--to=lerobot", "--fps=10"])
    names = ["--repo-id=some/name", f"--src-root={images}", f"--output={folder / 'lance_images'}"]
    script = "from lerobot_lancedb.scripts.convert_to_lance import main; import os; os._exit(main() or 0)"
    environment = ["env", f"HF_HOME={CACHES}", "HF_HUB_OFFLINE=1"]
    command([*environment, HOME / "bin" / "python", "-c", script, *names])
    command([HOME / "bin" / "python", PEERS / "loading_remote.py", folder])
    (folder / "finished").touch()
    return folder


@contextlib.contextmanager
def serving(delay: int) -> Iterator[str]:
    """The address of a server for the folders below DATA."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    arguments = [sys.executable, SERVER, str(port), DATA, f"--delay={delay}", f"--gigabits={GIGABITS}"]
    process = subprocess.Popen([str(argument) for argument in arguments])
    try:
        url = f"http://127.0.0.1:{port}"
        for _ in range(100):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{url}/_counts", timeout=5).close()
                break
            time.sleep(0.1)
        yield url
    finally:
        process.kill()
        process.wait()


def measure(folder: Path, name: str, url: str) -> Measurement:
    """A run of one loader, with its own empty caches, but for the index of ours."""
    caches = CACHES / name.replace(" ", "_")
    places = [
        f"HF_HOME={caches}",
        f"RLDS_BEAM_CACHE={caches}",
        "HF_HUB_OFFLINE=1",
        f"BENCHMARK_BUCKET=s3://{folder.name}",
    ]
    account = [
        "AWS_ACCESS_KEY_ID=a",
        "AWS_SECRET_ACCESS_KEY=b",
        "AWS_REGION=us-east-1",
        "AWS_DEFAULT_REGION=us-east-1",
        "AWS_ALLOW_HTTP=true",
        "AWS_EC2_METADATA_DISABLED=true",
        f"AWS_ENDPOINT_URL={url}",
        f"AWS_ENDPOINT={url}",
        f"S3_ENDPOINT_URL={url}",
    ]
    python = HOME / "bin" / "python"
    arguments = [name, "plain", folder, f"--workers={WORKERS}", "--seconds=600", f"--began={time.time()}", "--cold"]
    printed, _ = command(["env", *places, *account, python, PEERS / "loading_peer.py", *arguments])
    content = json.loads(printed.splitlines()[-1])
    return Measurement(content, content["steps_per_second"], content["seconds"], content["from_start"])


def report(runs: Runs) -> list[Figure]:
    """Prints the tables."""
    found = {key: best(measured) for key, measured in runs.items()}
    head = ["samples/s", "of bare", "ms of a core", "first batch s", "MB", "requests a sample", "bytes a sample"]
    figures = []
    for delay in sorted({delay for _, delay in found}):
        rows = []
        for name, label in LOADERS.items():
            if (name, delay) not in found:
                continue
            run, content = found[name, delay], found[name, delay].content
            first = min(other.content["first_batch"] for other in runs[name, delay])
            row = [f"{run.rate:,.0f}", f"{run.rate / found['bare', delay].rate:.2f}", f"{content['processor_ms']:.2f}"]
            row += [f"{first:.2f}", f"{content['memory_mb']:,.0f}"]
            rows.append([label, *row, f"{content['requests']:.2f}", f"{content['bytes']:,.0f}"])
        table(f"{delay} ms, {GIGABITS} Gbit/s: the first epoch, batches of 32, shuffled, 2 workers", ["", *head], *rows)
        figures += _figures(runs, found, delay)
    return figures


RATIOS: tuple[tuple[str, str, float | None, str], ...] = (
    ("remote lerobot_images", "bare", 0.8, ""),
    ("remote lerobot_images", "remote lance images", 2.0, "lerobot-lancedb"),
    ("remote rlds", "remote webdataset", 1.0, "WebDataset"),
)
"""Ours, a peer, the target of their ratio, and the peer's name in the chart."""


def _figures(runs: Runs, found: dict[tuple[str, int], Measurement], delay: int) -> list[Figure]:
    figures = []
    for ours, peer, target, name in RATIOS:
        if (ours, delay) in found and (peer, delay) in found:
            claim = f"{delay} ms: {LOADERS[ours]}: times {LOADERS[peer]}"
            ratio = found[ours, delay].rate / found[peer, delay].rate
            what, against = f"{LOADERS[ours]}, from a bucket {delay} ms away", LOADERS[peer]
            row = {"what": what, "peer": name if delay == DELAYS[-1] else "", "against": against}
            each = ratios(runs[ours, delay], runs[peer, delay])
            figures.append(at_least(claim, ratio, target, runs=each, **row))
            if delay == DELAYS[-1]:
                spent = [found[one, delay].content["processor_ms"] for one in (peer, ours)]
                how = {"what": f"{what}, by processor time", "against": against}
                figures.append(at_least(f"{claim}, by processor time", spent[0] / spent[1], None, **how))
    return figures
