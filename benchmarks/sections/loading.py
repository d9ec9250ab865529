"""`open_dataset` as a training loader, against the loaders of LeRobot, Lance, TFDS and Octo, and against the bare loop."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sys
import time
from pathlib import Path

from measuring import COMMAND, DATA, HERE, Figure, Measurement, Sizes, best, command, make, table

HOME = HERE.parent / ".venv-peers-loading"
PEER = HERE / "peers/loading_peer.py"
FORMATS = ("tfrecord", "array_record", "parquet")
WINDOWS = """
- Normalize: {fields: [observation/state, action], mode: normal, statistics: STATS}
- HistoryWindow: {length: 2}
- AddObservationsFromEpisodesToBatch
- AddColumnsFromEpisodesToTrainBatch
- ActionChunking: {horizon: 16, preset: lerobot}
"""


@dataclasses.dataclass(frozen=True)
class Loader:
    """A loader of `peers/loading_peer.py`.

    Attributes:
      label: what the tables print.
      data: its files in the folder.
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
    "batches rlds_array_record": Loader("batches, RLDS as ArrayRecord", "rlds_array_record", THREADS),
    "batches lerobot_images": Loader("batches, LeRobot with JPEGs", "lerobot_images", THREADS),
    "batches lerobot_video": Loader("batches, LeRobot with video", "lerobot_video", THREADS),
    "torch steps": Loader("torch, steps of RLDS", "rlds"),
    "grain steps": Loader("grain, steps of RLDS", "rlds"),
    "torch tfrecord": Loader("torch, columns as TFRecord", "columns_tfrecord"),
    "torch array_record": Loader("torch, columns as ArrayRecord", "columns_array_record"),
    "torch parquet": Loader("torch, columns as Parquet", "columns_parquet"),
    "grain array_record": Loader("grain, columns as ArrayRecord", "columns_array_record"),
    "lerobot images": Loader("LeRobot, JPEGs", "lerobot_images"),
    "lerobot pyav": Loader("LeRobot, video, PyAV", "lerobot_video"),
    "lerobot torchcodec": Loader("LeRobot, video, torchcodec", "lerobot_video"),
    "lance images": Loader("lerobot-lancedb, JPEGs", "lance_images"),
    "lance video": Loader("lerobot-lancedb, video, torchcodec", "lance_video"),
    "tf.data": Loader("tf.data as Octo and OpenVLA", "rlds", THREADS, tensorflow=True),
    "as_data_source": Loader("TFDS as_data_source", "rlds_array_record", THREADS, tensorflow=True),
}


def loading(sizes: Sizes) -> list[Figure]:
    """Batches of 32 from 10,000 steps with a camera of 256x256: frames as stored, and samples of a policy at 224x224."""
    if not (HOME / "bin" / "rlds-beam").exists():
        print(f"\nloading: skipped, there is no {HOME} (make test-peers PEERS=loading makes it)")
        return []
    folder, able = prepare(sizes.of(10_000, 2_000)), list(LOADERS)
    runs: dict[tuple[str, str, int], list[Measurement]] = {}
    for _ in range(sizes.repeats):
        for name in list(able):
            for sample in ("plain", "policy", "cold"):
                for workers in LOADERS[name].workers if sample != "cold" else THREADS[-1:]:
                    run = measure(folder, name, sample, workers, 0.5 if sizes.quick else 3.0)
                    if run is None:
                        able = [other for other in able if other != name]
                        break
                    runs.setdefault((name, sample, workers), []).append(run)
                if name not in able:
                    break
    found = {key: best(measured) for key, measured in runs.items()}
    for sample in ("plain", "policy"):
        _print(found, sample)
    return [*_figures(found), *first_batch_of_a_large_dataset(sizes)]


def measure(folder: Path, name: str, sample: str, workers: int, seconds: float) -> Measurement | None:
    """A run of one loader; `cold` is `policy` after its files left the page cache. None if it cannot run here."""
    loader = LOADERS[name]
    python = sys.executable if loader.tensorflow else HOME / "bin" / "python"
    kind, flags = ("policy", ["--cold"]) if sample == "cold" else (sample, [])
    if sample == "cold":
        forget(folder, loader.data)
    arguments = [name, kind, folder, "--workers", workers, "--seconds", seconds, *flags, "--began", time.time()]
    content = json.loads(command([python, PEER, *arguments])[0].splitlines()[-1])
    if "skipped" in content:
        print(f"\n{loader.label}: skipped, {content['skipped']}")
        return None
    return Measurement(content, content["steps_per_second"], content["seconds"], content["from_start"])


def forget(folder: Path, data: str) -> None:
    """Removes a loader's files from the page cache; pages that were never written to the disk would stay, hence the sync."""
    os.sync()
    for start in (
        folder.glob(f"{data}*") if not data.startswith("columns") else folder.glob(f"columns_policy_{data[8:]}")
    ):
        for path in start.resolve().rglob("*"):
            if path.is_file():
                file = os.open(path, os.O_RDONLY)
                os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(file)


def prepare(steps: int) -> Path:
    """The folder with the same steps in every format, and the index; made once."""
    folder = DATA / f"loading_{steps}"
    if (folder / "frames.npz").exists():
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (folder / "rlds").symlink_to(make("camera256", steps, files=8))
    rlds, tool = folder / "rlds", HOME / "bin" / "rlds-beam"
    command([COMMAND, "stats", rlds, f"--output={folder / 'stats.json'}"])
    (folder / "windows.yaml").write_text(WINDOWS.replace("STATS", str(folder / "stats.json")))
    command([tool, "convert", rlds, folder / "rlds_array_record", "--to=rlds", "--format=array_record"])
    command([tool, "convert", rlds, folder / "lerobot_images", "--to=lerobot", "--fps=10"])
    command([tool, "convert", rlds, folder / "lerobot_video", "--to=lerobot", "--fps=10", "--images=video"])
    for format in FORMATS:
        columns = ["--to=columns", f"--format={format}"]
        command([tool, "convert", rlds, folder / f"columns_plain_{format}", *columns])
        windows = f"--connectors={folder / 'windows.yaml'}"
        command([tool, "convert", rlds, folder / f"columns_policy_{format}", *columns, windows])
    for kind, script in (("images", "lerobot-convert-to-lance"), ("video", "lerobot-convert-to-lance-video")):
        source = folder / f"lerobot_{kind}"
        flags = ["--repo-id=some/name", f"--src-root={source}", f"--output={folder / f'lance_{kind}'}"]
        command([HOME / "bin" / script, *flags])
    command([sys.executable, HERE / "peers/loading_data.py", rlds, folder])
    return folder


def _print(found: dict[tuple[str, str, int], Measurement], sample: str) -> None:
    rows = []
    for name, loader in LOADERS.items():
        rates = {workers: found.get((name, sample, workers)) for workers in (0, 1, 2)}
        two, cold = rates[2], found.get((name, "cold", 2))
        if two is None:
            continue
        row = [loader.label, *(f"{run.rate:,.0f}" if run else "" for run in rates.values())]
        row += [f"{two.content['first_batch']:.2f}", f"{two.content['from_start']:.1f}"]
        row += [f"{two.content['memory_mb']:,.0f}", f"{two.content['difference']:.2f}"]
        if sample == "policy":
            row += [f"{cold.rate:,.0f}", f"{cold.content['first_batch']:.2f}"] if cold else ["", ""]
        rows.append(row)
    head = ["samples/s with workers:", "0", "1", "2", "first batch s", "from start s", "MB", "difference"]
    cold_head = ["cold, 2", "first s"] if sample == "policy" else []
    title = {"plain": "one frame and action, 256x256", "policy": "history 2, chunk 16, normalized, 224x224"}[sample]
    table(f"{title}, batches of 32, shuffled", [*head, *cold_head], *rows)


def _figures(found: dict[tuple[str, str, int], Measurement]) -> list[Figure]:
    """Ratios of the best number of workers of each."""
    figures = []
    for sample in ("plain", "policy"):
        rates = {
            name: max((run.rate for (one, kind, _), run in found.items() if (one, kind) == (name, sample)), default=0.0)
            for name in LOADERS
        }
        targets = [
            ("batches rlds", "bare", 0.8), ("batches lerobot_images", "lance images", 2.0),
            ("batches lerobot_images", "lerobot images", 5.0), ("batches lerobot_video", "lerobot torchcodec", None),
            ("torch parquet", "lerobot images", 1.0),
        ]  # fmt: skip
        for name, peer, target in targets:
            if rates[name] and rates[peer]:
                label = f"{sample}: {LOADERS[name].label}: times {LOADERS[peer].label}"
                figures.append(Figure(label, rates[name] / rates[peer], target))
    return figures


def first_batch_of_a_large_dataset(sizes: Sizes) -> list[Figure]:
    """Seconds to the first batch with the index of a dataset of 1 TB."""
    return []
