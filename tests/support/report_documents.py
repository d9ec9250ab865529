"""Report documents for tests, without reading a dataset."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from rlds_beam.checking.signals import DatasetFinding
from rlds_beam.images.codecs import encode_jpeg
from rlds_beam.viewing.episode_view import Camera, EpisodeView, Mark, Picture, Series
from rlds_beam.viewing.report.document import (
    ComparisonSection,
    ConnectorEffect,
    ConversionSection,
    DatasetFacts,
    DatasetPart,
    DroppedRow,
    FieldRow,
    ItemUse,
    Made,
    Pair,
    ReportDocument,
    SplitRow,
    UnusedRow,
)
from rlds_beam.viewing.report.sections import (
    FILM_FRAMES,
    Change,
    Distributions,
    FieldDistribution,
    GridCell,
    Histogram,
    NumberDistribution,
    RejectedSample,
    RuleSection,
    SignalSection,
    TextCount,
    TextTable,
    WorstEpisode,
)

HOSTILE = (
    "</script><script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 1'>",
    "\"><svg onload=window.hacked=1> ' ` {{ 7 * 7 }} {% x %}",
    "<!--<script> ]]> --> &lt;b&gt; &#60;",
    "javascript:window.hacked=1",
    "https://example.com/tracker.png",
    "abc \u202egpj.exe\u202c \u2066x\u2069 \u200f",
    "\u2028 \u2029 \x00 \x1b[31m \x07 \ud800 \ufeff",
    "w" * 3000,
    "long text " * 2000,
    "Z\u0335\u0321\u0322\u031b" * 50,
    "\u200b" * 50,
    "نص عربي עברית 文字 🦾",
    "rm -rf ~ #\nnext\r\nline\ttab",
    "</style><style>*{display:none}",
)
"""Texts that a dataset may contain."""


def picture(seed: int, step: int = 0, height: int = 64, width: int = 80, fault: str = "") -> Picture:
    """A smooth picture that differs by seed and step."""
    y, x = np.mgrid[0:height, 0:width]
    waves = [np.sin((x * (1 + c) + y * (2 - c)) / 30 + seed + step / 9) for c in range(3)]
    pixels = (127 + 120 * np.stack(waves, axis=-1)).astype(np.uint8)
    return Picture(encode_jpeg(pixels[None], quality=80)[0], step, fault)


def series(path: str, labels: tuple[str, ...], steps: int, seed: int = 0, nan_at: int | None = None) -> Series:
    """Smooth curves; `nan_at`: a step without a value."""
    at = tuple(range(steps))
    values = [
        tuple(None if t == nan_at else round(math.sin(t / 7 + seed + i) * (1 + i), 4) for t in at)
        for i in range(len(labels))
    ]
    return Series(path, labels, at, tuple(values))


def episode(
    key: str, seed: int, steps: int = 60, marks: tuple[Mark, ...] = (), text: str = "", **more: Any
) -> EpisodeView:
    """An episode with two cameras and three fields."""
    frames = [round(i * (steps - 1) / 8) for i in range(9)]
    cameras = tuple(
        Camera(path, steps, height=64, width=80, pictures=tuple(picture(seed + i, step) for step in frames))
        for i, path in enumerate(("observation/image_0", "observation/wrist"))
    )
    nan_at = next((mark.step for mark in marks if mark.kind == "rule"), None)
    curves = (
        series("observation/state", ("x", "y", "z", "roll", "pitch", "yaw", "gripper"), steps, seed),
        series("action", ("x", "y", "z", "roll", "pitch", "yaw", "gripper"), steps, seed + 1, nan_at),
        series("reward", ("",), steps, seed),
    )
    return EpisodeView(
        key,
        steps,
        5.0,
        1.5 + seed,
        text or "put the carrot on the plate",
        {"success": True, "operator": text or "anna"},
        cameras,
        curves,
        {"language": [(0, text or "reach"), (20, "lift")]},
        marks,
        **more,
    )


def distribution(label: str, seed: int = 0, values: int = 500) -> NumberDistribution:
    """Normal values."""
    numbers = np.random.default_rng(seed).normal(seed, 1 + seed, values)
    counts, edges = np.histogram(numbers, 24)
    named = tuple((f"q{q:02}", float(np.quantile(numbers, q / 100))) for q in (1, 10, 50, 90, 99))
    ends = float(numbers.mean()), float(numbers.std()), float(numbers.min()), float(numbers.max())
    return NumberDistribution(label, values, *ends, named, Histogram(tuple(edges.tolist()), tuple(counts.tolist())))


def signal(name: str, group: str, keys: list[str], beyond: int, text: str = "", seed: int = 0) -> SignalSection:
    """A signal with its worst episodes."""
    worst = tuple(WorstEpisode(key, 9.5 - i, "action", 20 + i, 24 + 2 * i) for i, key in enumerate(keys))
    return SignalSection(
        name,
        group,
        text or "largest step of an action, in robust standard deviations",
        "sd",
        2.5,
        True,
        500,
        beyond,
        distribution("", seed).histogram,
        worst,
        text or "look at these episodes; a teleoperator may have reset",
        text or f"rlds-beam convert /data/toy/1.0.0 /data/out --reject='{name} > 2.5'",
    )


def part(name: str = "bridge_dataset/1.0.0", text: str = "", episodes: int = 8, prefix: str = "") -> DatasetPart:
    """A dataset with everything that a report shows; `text` is in every field that a dataset fills."""
    keys = [f"{text}{prefix}{name}:train:00000@{1000 * i}" for i in range(episodes)]
    rule = Mark("rule", "nonfinite", "action", 31, 32, text or "NaN at step 31, dimension 2")
    found = Mark("signal", "jump", "observation/state", 12, 18, "9.5 sd")
    views = {
        key: episode(key, i, 60, (rule,) if i in (1, 2, 3) else (found,) if i in (4, 5) else (), text)
        for i, key in enumerate(keys)
    }
    views[keys[3]] = EpisodeView(
        keys[3], 0, note=text or "the record cannot be read", excerpt="0000  0a 12 ff 00  |....|"
    )
    facts = DatasetFacts(
        text or name,
        text or f"/data/{name}",
        "rlds",
        "tfrecord",
        5.0,
        (
            FieldRow(text or "observation/state", "step", "float32", "(7)"),
            FieldRow("observation/image_0", "step", "uint8", "(256, 256, 3)", "jpeg Image"),
            FieldRow("success", "episode", "bool", "()"),
        ),
        (SplitRow(text or "train", 480, 4, 123_456_789), SplitRow("test", None, 1, 23_456_789)),
        503,
        470,
        30,
        3,
        500,
        21_345,
        146_913_578,
        (text,) if text else (),
        (("source", text or "gs://gresearch/robotics"), ("fingerprint", "a" * 32)),
        (("license", text or "CC BY 4.0"), ("description", text or "Kitchens and toys")),
    )
    fields = tuple(
        FieldDistribution(text or path, tuple(distribution(label, i) for i, label in enumerate("xyz")), left_out=1)
        for path in ("observation/state", "action")
    )
    broken = (
        RuleSection(
            "nonfinite",
            "a number is NaN or infinite",
            "find out which sensor failed",
            0,
            0,
            2,
            text or "rlds-beam convert /data/in /data/out --repair=nonfinite",
            tuple(RejectedSample(key, text or "NaN at step 31", 31) for key in keys[1:3]),
        ),
        RuleSection(
            "unreadable",
            "the record cannot be read",
            "copy the file again",
            0,
            30,
            1,
            "",
            (RejectedSample(keys[3], text or "checksum"),),
        ),
    )
    signals = (
        signal("frozen_camera", "Cameras", [], 0, text, 1),
        signal("jump", "Motion", keys[4:6], 12, text, 2),
        signal("chatter", "Motion", keys[:2], 3, text, 0),
    )
    texts = (
        TextTable(
            text or "instruction",
            tuple(TextCount(text or f"put the carrot on plate {i}", 200 // (i + 1)) for i in range(6)),
            40,
            12,
            3,
        ),
        TextTable("success", (TextCount("true", 400), TextCount("false", 100)), 2),
    )
    grid = tuple(
        GridCell(
            key,
            60,
            "observation/image_0",
            picture(i, width=80 * FILM_FRAMES),
            text or "put the carrot on the plate",
            (Mark("rule", "nonfinite"),) * (i == 0),
        )
        for i, key in enumerate(keys)
    )
    return DatasetPart(
        facts,
        grid,
        (keys[0], keys[6], keys[7]),
        Distributions(distribution("", 3), distribution("", 1), fields, 2),
        texts,
        signals,
        tuple(
            DatasetFinding("constant_metadata", text or f"field_{i}", text or "'widowx' in all 24", "check it")
            for i in range(9)
        ),
        broken,
        views,
        (text or "frames of 10 episodes are left out to keep the report small",),
        (text or "blurred_camera: images were not decoded",),
        {key: 10 * i for i, key in enumerate(keys[:-1])},
    )


def conversion(text: str = "") -> ConversionSection:
    """A conversion that rejected, dropped, and padded."""
    examples = (Change(episode(text or "k", 1, 40, text=text), episode(text or "k", 2, 20, text=text)),)
    return ConversionSection(
        "convert",
        "trajectories",
        text or "/data/bridge_dataset/1.0.0",
        "0.1.0",
        (("--item", text or "pairs"),),
        503,
        440,
        3,
        30,
        (DroppedRow(text or "MinimumLength", 40, 40), DroppedRow("Filter", 20, 20)),
        (
            ConnectorEffect(text or "MinimumLength", "transitions=10", 500, 460, 21_345, 21_000, 40, 0),
            ConnectorEffect("Normalize", text, 460, 460, 21_000, 21_000, 0, 460, ("action",), ("advantage",)),
        ),
        ItemUse("pairs", 20_560, 20_560, 21_000, 41_120, 1.958, 120),
        (UnusedRow("last step", text or "has no successor", "none needed", 440, 440),),
        (text or "observation/depth (no output for depth images; --keep=observation/depth stores it)",),
        examples,
    )


def comparison(text: str = "") -> ComparisonSection:
    """Two datasets that differ."""
    pairs = []
    for field, label in (("length", ""), ("return", ""), ("action", "x"), ("observation/state", text or "gripper")):
        first, second = distribution(label, 1), distribution(label, 2)
        counts = tuple(reversed(first.histogram.counts))
        second = NumberDistribution(
            label,
            second.count,
            second.mean,
            second.std,
            second.least,
            second.most,
            second.quantiles,
            Histogram(first.histogram.edges, counts),
        )
        pairs.append(Pair(text or field, label, first, second))
    return ComparisonSection(
        text or "bridge_dataset/1.0.0",
        "bridge_dataset/2.0.0",
        (
            (text or "observation/depth", "float32 (2)", ""),
            ("action", "float32 (7)", "float64 (7)"),
        ),
        tuple(pairs),
        3,
    )


def one(text: str = "") -> ReportDocument:
    """A report of one dataset."""
    return ReportDocument(
        text or "bridge_dataset/1.0.0",
        (part(text=text),),
        Made(text or "rlds-beam report /data/bridge_dataset/1.0.0", "0.1.0"),
    )


def everything(text: str = "") -> ReportDocument:
    """A report with all sections."""
    both = part(text=text), part("bridge_dataset/2.0.0", text, prefix="other ")
    return ReportDocument(
        text or "bridge_dataset/1.0.0 and 2.0.0",
        both,
        Made(text or "rlds-beam report A B", "0.1.0"),
        conversion(text),
        comparison(text),
    )
