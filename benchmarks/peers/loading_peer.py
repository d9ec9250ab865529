"""Measures one loader in its own process: `python benchmarks/peers/loading_peer.py LOADER SAMPLE FOLDER [options]`.

LOADER is one of `LOADERS`, SAMPLE one of `SAMPLES`; `sections/loading.py` prepares FOLDER. Prints JSON:

- `steps_per_second`: samples per second after a few batches; of the first epoch, from the first batch on, with --cold.
- `first_batch`: seconds from opening the dataset to the first batch; imports are done before.
- `from_start`: seconds from --began, when the process was started, to the first batch.
- `processor_ms`: processor time of a sample, of all processes; other load on the machine hardly changes it.
- `requests`, `bytes`: of a sample, from the bucket of `run.py remote`.
- `memory_mb`: memory of the process and its workers at the end, shared pages divided among them.
- `difference`: of the images of the last batch, from those recorded. A batch of other data ends the process.
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import loading_ours as ours
import loading_remote
import loading_tensorflow
import loading_torch
from loading_checks import check, memory_mb, processor_seconds
from loading_data import BATCH, SAMPLES, load

WARM_UP = 8
"""Batches before the measurement; more with the workers that fill their queues before."""


class Loader(NamedTuple):
    """A function that opens a loader, and the modules it needs, which are imported before."""

    open: ours.Loader
    modules: tuple[str, ...]


TORCH = ("torch.utils.data",)
LEROBOT = (*TORCH, "torchvision.transforms.v2", "lerobot.datasets.lerobot_dataset", "pandas")
LANCE = (*LEROBOT, "lerobot_lancedb", "torchvision.io")
OURS = ("rlds_beam", "rlds_beam.datasets.opening", "rlds_beam.connectors", "simplejpeg")
TFDS = ("tensorflow", "tensorflow_datasets")

LOADERS = {
    "bare": Loader(ours.bare, ("cv2", "simplejpeg")),
    **{f"batches {name}": Loader(ours.batches(name), OURS) for name in ("rlds", "lerobot_images", "lerobot_video")},
    "batches parquet": Loader(ours.column_batches("parquet"), OURS),
    "torch parquet": Loader(ours.torch_columns("parquet"), (*OURS, *TORCH, "cv2")),
    "lerobot images": Loader(loading_torch.images, LEROBOT),
    "lerobot torchcodec": Loader(loading_torch.torchcodec, (*LEROBOT, "torchcodec.decoders")),
    "lance images": Loader(loading_torch.lance_images, LANCE),
    "lance video": Loader(loading_torch.lance_video, (*LANCE, "torchcodec.decoders")),
    "tf.data": Loader(loading_tensorflow.tf_data, TFDS),
    "remote rlds": Loader(loading_remote.batches("rlds"), OURS),
    "remote lerobot_images": Loader(loading_remote.batches("lerobot_images"), OURS),
    "remote lance images": Loader(loading_remote.lance_images, LANCE),
    "remote webdataset": Loader(loading_remote.webdataset, (*TORCH, "webdataset", "simplejpeg")),
}


def measure(args: Any) -> dict[str, float]:
    loader, sample, frames = LOADERS[args.loader], SAMPLES[args.sample], load(args.folder)
    for module in loader.modules:
        importlib.import_module(module)
    opened = time.perf_counter()
    batches = loader.open(args.folder, frames, sample, args.workers)
    batch = next(batches)
    first = time.perf_counter() - opened
    result = {"first_batch": first, "from_start": time.time() - args.began}
    for _ in range(0 if args.cold else WARM_UP + 4 * args.workers):
        batch = next(batches)
    most = len(frames.action) // BATCH - 1 if args.cold else 1 << 60
    before = loading_remote.counts()
    spent, began, count = processor_seconds(), time.perf_counter(), 0
    while time.perf_counter() - began < args.seconds and count < most:
        batch = next(batches)
        count += 1
    seconds = time.perf_counter() - began
    spent, memory = processor_seconds() - spent, memory_mb()
    after = loading_remote.counts()
    result.update({name: (after[name] - before[name]) / count / BATCH for name in after})
    result.update(steps_per_second=count * BATCH / seconds, seconds=seconds, processor_ms=1000 * spent / count / BATCH)
    return {**result, "memory_mb": memory, "difference": check(batch, frames, sample)}


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("loader", choices=LOADERS)
    parser.add_argument("sample", choices=SAMPLES)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=1, help="worker processes, or threads")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--began", type=float, default=time.time(), help="seconds since the epoch")
    parser.add_argument("--cold", action="store_true")
    args = parser.parse_args()
    print(json.dumps(measure(args)))


if __name__ == "__main__":
    main()
