"""`open_dataset` as a training loader, against other projects' loaders and the bare loop."""

from __future__ import annotations

import dataclasses
import json
import shutil
import sys
import time
from pathlib import Path

from measuring import COMMAND, DATA, HERE, Figure, Measurement, Sizes, at_least, best, command, make, table

HOME = HERE.parent / ".venv-peers-loading"
PEERS = HERE / "peers"
CACHES = DATA / "loading_caches"
WINDOWS = """
- Normalize: {fields: [observation/state, action], mode: normal, statistics: STATS}
- HistoryWindow: {length: 2}
- AddObservationsFromEpisodesToBatch
- AddColumnsFromEpisodesToTrainBatch
- ActionChunking: {horizon: 16, preset: lerobot}
"""
SHORT = {"plain": "frames", "policy": "windows"}
TITLES = {"plain": "one frame and action, 256x256", "policy": "history 2, chunk 16, normalized, 224x224"}


@dataclasses.dataclass(frozen=True)
class Loader:
    """A loader of `peers/loading_peer.py`.

    Attributes:
      label: what the tables print.
      data: its folder; {} is the kind of sample.
      workers: the numbers of workers to measure; 0 is this process.
      tensorflow: whether it runs in .venv, instead of the environment of `requirements/loading.in`.
    """

    label: str
    data: str
    workers: tuple[int, ...] = (0, 1, 2)
    tensorflow: bool = False


THREADS = (1, 2)
LOADERS = {
    "bare": Loader("bare loop: read, decode, resize", "rlds", THREADS),
    "batches rlds": Loader("batches, RLDS as TFRecord", "rlds", THREADS),
    "batches lerobot_images": Loader("batches, LeRobot with JPEGs", "lerobot_images", THREADS),
    "batches parquet": Loader("batches, columns as Parquet", "columns_{}_parquet", THREADS),
    "batches lerobot_video": Loader("batches, LeRobot with video", "lerobot_video", THREADS),
    "torch parquet": Loader("torch, columns as Parquet", "columns_{}_parquet"),
    "lerobot images": Loader("LeRobot, JPEGs", "lerobot_images"),
    "lerobot torchcodec": Loader("LeRobot, video, torchcodec", "lerobot_video"),
    "lance images": Loader("lerobot-lancedb, JPEGs", "lance_images"),
    "lance video": Loader("lerobot-lancedb, video, torchcodec", "lance_video"),
    "tf.data": Loader("tf.data as Octo and OpenVLA", "rlds", THREADS, tensorflow=True),
}
RATIOS: tuple[tuple[str, str, float | None, str], ...] = (
    ("batches rlds", "bare", 0.8, ""),
    ("batches lerobot_images", "lance images", 2.0, "lerobot-lancedb"),
    ("batches lerobot_images", "lerobot images", 5.0, "LeRobot"),
    ("batches lerobot_video", "lance video", 1.0, "lerobot-lancedb"),
    ("batches lerobot_video", "lerobot torchcodec", 1.0, "LeRobot"),
    ("batches rlds", "tf.data", 1.0, "Octo's tf.data"),
    ("batches parquet", "lerobot images", 1.0, "LeRobot"),
    ("torch parquet", "lerobot images", 1.0, "LeRobot"),
)
"""Ours, a peer, the target of their ratio, and the peer's name in the chart."""

FRONT = ("plain", "lerobot images", "Load shuffled batches")
"""The ratio of the front page: its kind of sample and peer, and its label."""

Runs = dict[tuple[str, str, int], list[Measurement]]


def loading(sizes: Sizes) -> list[Figure]:
    """Shuffled batches of 32 from 10,000 steps with a camera of 256x256: frames as stored, and samples of a policy."""
    if not (HOME / "bin" / "rlds-beam").exists():
        print(f"\nloading: skipped, there is no {HOME} (make test-peers PEERS=loading makes it)")
        return []
    folder = prepare(sizes.of(10_000, 2_000))
    shutil.rmtree(CACHES, ignore_errors=True)
    runs: Runs = {}
    for _ in range(sizes.repeats):
        for name, loader in LOADERS.items():
            for sample in SHORT:
                for workers in loader.workers[-1:] if sizes.quick else loader.workers:
                    run = measure(folder, name, sample, workers, 0.5 if sizes.quick else 3.0)
                    if run is not None:
                        runs.setdefault((name, sample, workers), []).append(run)
    return report(runs)


def measure(folder: Path, name: str, sample: str, workers: int, seconds: float) -> Measurement | None:
    """A run of one loader; None if it cannot run here."""
    loader, caches = LOADERS[name], CACHES / name.replace(" ", "_")
    if "torchcodec" in loader.label and not shutil.which("ffmpeg"):
        print(f"\n{loader.label}: skipped, torchcodec needs FFmpeg's libraries (apt install ffmpeg)")
        return None
    # Where Hugging Face's datasets and we keep what was read once: each loader has its own.
    places = [f"HF_HOME={caches}", f"RLDS_BEAM_CACHE={caches}", "HF_HUB_OFFLINE=1", "TF_CPP_MIN_LOG_LEVEL=3"]
    python = sys.executable if loader.tensorflow else HOME / "bin" / "python"
    arguments = [name, sample, folder, f"--workers={workers}", f"--seconds={seconds}", f"--began={time.time()}"]
    printed, _ = command(["env", *places, python, PEERS / "loading_peer.py", *arguments])
    content = json.loads(printed.splitlines()[-1])
    return Measurement(content, content["steps_per_second"], content["seconds"], content["from_start"])


_CONVERT_TO_LANCE = """
import os, sys
from lerobot_lancedb.scripts.{} import main
code = main() or 0
sys.stdout.flush()
os._exit(code)  # Lance's threads may crash while Python ends, after all is written
"""


def prepare(steps: int) -> Path:
    """The folder with the same steps in every format; made once."""
    folder = DATA / f"loading_{steps}"
    if (folder / "finished").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    prepare_rlds(folder, steps)
    rlds, tool = folder / "rlds", HOME / "bin" / "rlds-beam"
    command([tool, "convert", rlds, folder / "lerobot_images", "--to=lerobot", "--fps=10"])
    command([tool, "convert", rlds, folder / "lerobot_video", "--to=lerobot", "--fps=10", "--images=video"])
    columns = ["--to=columns", "--format=parquet"]
    command([tool, "convert", rlds, folder / "columns_plain_parquet", *columns])
    command(
        [tool, "convert", rlds, folder / "columns_policy_parquet", *columns, f"--connectors={folder / 'windows.yaml'}"]
    )
    for kind, script in (("images", "convert_to_lance"), ("video", "convert_to_lance_video")):
        source, target = folder / f"lerobot_{kind}", folder / f"lance_{kind}"
        names = ["--repo-id=some/name", f"--src-root={source}", f"--output={target}"]
        run = [HOME / "bin" / "python", "-c", _CONVERT_TO_LANCE.format(script)]
        command(["env", f"HF_HOME={CACHES}", "HF_HUB_OFFLINE=1", *run, *names])
    (folder / "finished").touch()
    return folder


def prepare_rlds(folder: Path, steps: int) -> None:
    """The steps as RLDS, their statistics, and the index of the bare loop."""
    folder.mkdir()
    rlds = folder / "rlds"
    rlds.symlink_to(make("camera256", steps, files=8))
    command([COMMAND, "stats", rlds, f"--output={folder / 'stats.json'}"])
    (folder / "windows.yaml").write_text(WINDOWS.replace("STATS", str(folder / "stats.json")))
    command([sys.executable, PEERS / "loading_data.py", rlds, folder])


def report(runs: Runs) -> list[Figure]:
    """Prints the tables."""
    found = {key: best(measured) for key, measured in runs.items()}
    for sample, title in TITLES.items():
        rows = [_row(runs, found, name, sample) for name in LOADERS if (name, sample, 2) in found]
        head = ["samples/s, workers: 0", "1", "2", "ms of a core", "once s", "first batch s", "from start s", "MB"]
        table(f"{title}, batches of 32, shuffled", ["", *head, "difference"], *rows)
    print(
        "  once: to the first batch when nothing was cached; ms of a core: processor time of a sample with 2 workers;\n"
        "  difference: of the images from those stored, of 255."
    )
    return _figures(found)


def _row(runs: Runs, found: dict[tuple[str, str, int], Measurement], name: str, sample: str) -> list[str]:
    loader, two = LOADERS[name], found[name, sample, 2]
    own = [run.content for workers in loader.workers for run in runs.get((name, sample, workers), [])]
    fastest = min(run.content["first_batch"] for run in runs[name, sample, 2])
    rates = [found.get((name, sample, workers)) for workers in (0, 1, 2)]
    row = [loader.label, *(f"{run.rate:,.0f}" if run else "" for run in rates)]
    row += [f"{two.content['processor_ms']:.2f}", f"{own[0]['first_batch']:.2f}", f"{fastest:.2f}"]
    row += [f"{min(run.start_up for run in runs[name, sample, 2]):.1f}", f"{two.content['memory_mb']:,.0f}"]
    row.append(f"{two.content['difference']:.2f}")
    return row


def _figures(found: dict[tuple[str, str, int], Measurement]) -> list[Figure]:
    """Ratios, each with its best number of workers."""
    figures = []
    for sample in TITLES:
        rates: dict[str, float] = {}
        for (name, kind, _), run in found.items():
            if kind == sample:
                rates[name] = max(run.rate, rates.get(name, 0.0))
        for ours, peer, target, name in RATIOS:
            if ours in rates and peer in rates:
                label = f"{sample}: {LOADERS[ours].label}: times {LOADERS[peer].label}"
                front = FRONT[2] if (sample, peer) == FRONT[:2] and ours == "batches lerobot_images" else ""
                row = {"what": f"{LOADERS[ours].label}, {SHORT[sample]}", "peer": name, "front": front}
                against = LOADERS[peer].label
                figures.append(at_least(label, rates[ours] / rates[peer], target, against=against, **row))
                spent = [found[name, sample, 2].content["processor_ms"] for name in (peer, ours)]
                figures.append(Figure(f"{label}, by processor time", spent[0] / spent[1]))
    return figures
