"""What a GPU waits for: `python benchmarks/peers/loading_gpu.py FOLDER [--workers N]`, where CUDA and torchvision are.

FOLDER is the one that `sections/loading.py` prepares. A ResNet-18 with a head for chunks of actions is trained in
bfloat16, as a small policy is: on a batch that stays on the GPU, then on batches of each loader. Prints JSON:

- `step_ms`: a step on the batch that stays, without any loader.
- `LOADER`: samples per second, and `waits`, the share of the time in which the GPU has nothing to do (1 - step / time).
- `nvjpeg`: images per second that the GPU decodes, and what `simplejpeg` decodes on as many threads as workers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import loading_ours as ours
import loading_torch
import numpy as np
import simplejpeg
import torch
import torchvision
from loading_data import BATCH, SAMPLES, Frames, load

LOADERS = {"rlds-beam": ours.batches("lerobot_images"), "LeRobot": loading_torch.images}
WARM_UP = 20
"""Batches before the measurement."""


class Policy(torch.nn.Module):
    """Images [B, H, h, w, 3] and states [B, H, 7] to chunks of actions [B, C, 7]."""

    def __init__(self, history: int, chunk: int):
        super().__init__()
        self.images = torchvision.models.resnet18(num_classes=256)
        self.head = torch.nn.Sequential(
            torch.nn.Linear(history * (256 + 7), 512), torch.nn.ReLU(), torch.nn.Linear(512, chunk * 7)
        )

    def forward(self, images: Any, state: Any) -> Any:
        seen = self.images(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        return self.head(torch.cat([seen, state], 2).flatten(1)).unflatten(1, (-1, 7))


class Trainer:
    """Steps of a policy; `step` only starts one on the GPU."""

    def __init__(self, history: int, chunk: int):
        self.policy = Policy(history, chunk).cuda().to(memory_format=torch.channels_last)
        self.optimizer = torch.optim.AdamW(self.policy.parameters(), fused=True)

    def step(self, batch: dict[str, Any]) -> None:
        images = batch["image"]
        if images.dtype == torch.uint8:
            images = images.movedim(-1, -3).to(torch.bfloat16) / 255
        with torch.autocast("cuda", torch.bfloat16):
            loss = torch.nn.functional.l1_loss(self.policy(images, batch["state"].float()), batch["action"].float())
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def to_gpu(batch: dict[str, Any]) -> dict[str, Any]:
    """The batch on the GPU, copied from pinned memory."""
    tensors = {name: torch.as_tensor(value) for name, value in batch.items()}
    return {name: tensor.pin_memory().cuda(non_blocking=True) for name, tensor in tensors.items()}


def train(trainer: Trainer, batches: Iterator[dict[str, Any]], seconds: float) -> float:
    """Seconds a step."""
    for batch in itertools.islice(batches, WARM_UP):
        trainer.step(batch)
    torch.cuda.synchronize()
    began, steps = time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        trainer.step(next(batches))
        steps += 1
        if steps % 4 == 0:
            torch.cuda.synchronize()  # else thousands of steps are started, and the time says nothing
    torch.cuda.synchronize()
    return (time.perf_counter() - began) / steps


def decode(frames: Frames, workers: int, seconds: float) -> dict[str, float]:
    """Images per second of the GPU, 256 at a time, and of the processor."""
    jpegs = [frames.jpeg(i) for i in range(256)]
    tensors = [torch.from_numpy(np.frombuffer(jpeg, np.uint8).copy()) for jpeg in jpegs]
    rates = {}
    with ThreadPoolExecutor(workers) as pool:
        for name, run in (
            ("gpu", lambda: torchvision.io.decode_jpeg(tensors, device="cuda")),
            ("processor", lambda: list(pool.map(lambda jpeg: simplejpeg.decode_jpeg(jpeg, fastdct=True), jpegs))),
        ):
            run()
            torch.cuda.synchronize()
            began, rounds = time.perf_counter(), 0
            while time.perf_counter() - began < seconds:
                run()
                rounds += 1
            torch.cuda.synchronize()
            rates[name] = rounds * len(jpegs) / (time.perf_counter() - began)
    return rates


def main() -> None:
    parser: Any = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--workers", type=int, default=16, help="threads of ours, worker processes of LeRobot's")
    parser.add_argument("--seconds", type=float, default=10.0)
    args = parser.parse_args()
    frames, sample = load(args.folder), SAMPLES["policy"]
    trainer = Trainer(sample.history or 1, sample.chunk or 1)
    first = to_gpu(next(LOADERS["rlds-beam"](args.folder, frames, sample, args.workers)))
    still = train(trainer, itertools.repeat(first), args.seconds)
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(), "step_ms": 1000 * still, "batch": BATCH}
    for name, load_batches in LOADERS.items():
        batches = map(to_gpu, load_batches(args.folder, frames, sample, args.workers))
        step = train(trainer, batches, args.seconds)
        found[name] = {"samples_per_second": BATCH / step, "waits": max(0.0, 1 - still / step)}
        print(name, found[name], flush=True)
    found["nvjpeg"] = decode(frames, args.workers, args.seconds / 2)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
