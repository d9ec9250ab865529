"""Loaders that need torch: LeRobot's and lerobot-lancedb's datasets in torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loading_data import BATCH, Frames, Sample

FPS = 10
CAMERA = "observation.images.image_0"

Batch = dict[str, Any]


def images(folder: Path, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
    """LeRobotDataset with the JPEGs in Parquet."""
    return _lerobot(folder / "lerobot_images", frames, sample, workers)


def torchcodec(folder: Path, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
    """LeRobotDataset with videos, decoded by torchcodec."""
    return _lerobot(folder / "lerobot_video", frames, sample, workers, video_backend="torchcodec", return_uint8=True)


def _lerobot(folder: Path, frames: Frames, sample: Sample, workers: int, **options: Any) -> Iterator[Batch]:
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    dataset = LeRobotDataset("some/name", root=folder, **_windows(sample), **options)
    return _batches(dataset, frames, sample, workers)


def lance_images(folder: Path, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
    """lerobot-lancedb's dataset of JPEGs, which its converter encodes again (quality 95)."""
    from lerobot_lancedb import LeRobotLanceDataset

    dataset = LeRobotLanceDataset(root=folder / "lance_images", table_name="name", **_windows(sample))
    return _batches(dataset, frames, sample, workers)


def lance_video(folder: Path, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
    """lerobot-lancedb's dataset of videos, decoded by torchcodec."""
    from lerobot_lancedb import LeRobotLanceVideoDataset

    root = folder / "lance_video"
    dataset = LeRobotLanceVideoDataset(root=root, table_name="name", return_uint8=True, **_windows(sample))
    return _batches(dataset, frames, sample, workers)


def _windows(sample: Sample) -> dict[str, Any]:
    """The arguments of a LeRobot dataset."""
    from torchvision.transforms import v2

    options: dict[str, Any] = {}
    if sample.history and sample.chunk:
        past = [step / FPS for step in range(1 - sample.history, 1)]
        ahead = [step / FPS for step in range(sample.chunk)]
        options["delta_timestamps"] = {CAMERA: past, "observation.state": past, "action": ahead}
    if sample.size:
        options["image_transforms"] = v2.Resize((sample.size, sample.size), antialias=True)
    return options


def _batches(dataset: Any, frames: Frames, sample: Sample, workers: int) -> Iterator[Batch]:
    """Batches forever; states and actions are normalized batch by batch, as LeRobot's policies do."""
    import torch

    scales = {name: torch.from_numpy(value) for name, value in frames.scales.items()}
    for batch in forever(dataset, workers):
        found = {"image": batch[CAMERA], "state": batch["observation.state"], "action": batch["action"]}
        if sample.size:
            for name, (mean, deviation) in scales.items():
                found[name] = (found[name] - mean) / (deviation + 1e-8)
        if sample.chunk:
            found["is_pad"] = batch["action_is_pad"]
        yield found


def forever(dataset: Any, workers: int) -> Iterator[Batch]:
    """Shuffled batches of torch's DataLoader, epoch after epoch."""
    from torch.utils.data import DataLoader

    loader = DataLoader(
        dataset, BATCH, shuffle=True, num_workers=workers, persistent_workers=workers > 0, drop_last=True
    )
    while True:
        yield from loader
