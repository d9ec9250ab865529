"""`convert --to=lerobot` against LeRobot's own writer, a copy of the same bytes, and the bare video encoder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from measuring import DATA, HERE, Figure, Measurement, Sizes, at_least, best, command, make, ratios, table

BIN = HERE.parent / ".venv-peers-lerobot" / "bin"


def lerobot(sizes: Sizes) -> list[Figure]:
    """Four cameras of 64x64 and of 256x256 as JPEGs, one worker; all in the environment of `make test-peers`."""
    if not (BIN / "rlds-beam").exists():
        print(f"\nlerobot: skipped, there is no {BIN} (make test-peers makes it)")
        return []
    figures, rows = [], []
    for kind, steps, peer_steps in (("jpeg", sizes.of(40_000, 4_000), 300), ("jpeg256", sizes.of(6_000, 1_000), 100)):
        data = make(kind, steps)
        runs: dict[str, list[Measurement]] = {"ours": [], "copy": [], "writer": []}
        for _ in range(sizes.repeats):
            runs["writer"].append(_peer("writer", data, peer_steps))
            runs["copy"].append(_peer("copy", data, steps))
            runs["ours"].append(_convert(data))
        found = {name: best(measured).rate for name, measured in runs.items()}
        what = f"`--to=lerobot`, 4 cameras of {kind.removeprefix('jpeg') or 64} as JPEGs"
        rows.append([kind, *(f"{found[name]:,.0f}" for name in ("writer", "copy", "ours"))])
        figures += [
            at_least(
                f"{kind}: times LeRobot's writer",
                found["ours"] / found["writer"],
                200,
                what=what,
                against="LeRobot's own writer in image mode",
                peer="LeRobot's writer",
                front="Write a LeRobot dataset" * (kind == "jpeg"),
                runs=ratios(runs["ours"], runs["writer"]),
            ),
            at_least(
                f"{kind}: of a copy with checksums",
                found["ours"] / found["copy"],
                0.5,
                what=what,
                against="copying the same bytes with checksums",
                runs=ratios(runs["ours"], runs["copy"]),
            ),
        ]
        if kind == "jpeg":
            figures.append(_merge(runs["ours"][-1].output, sizes))
    head = ["", "LeRobot's writer, steps/s", "a copy", "ours"]
    table("four cameras, images copied, one worker", head, *rows)
    data, steps = make("jpeg256", 200), 200
    options = ("to=lerobot", "fps=10", "images=video")
    encoders, videos = [], []
    for _ in range(sizes.repeats):
        encoders.append(_peer("encoder", data, steps).rate)
        printed, _ = command([BIN / "python", HERE / "peers/rlds_peer.py", "ours", data, *options])
        videos.append(json.loads(printed.splitlines()[-1])["steps_per_second"])
    encoder, ours = max(encoders), max(videos)
    rows = [["encoder", f"{encoder:,.0f}"], ["ours", f"{ours:,.0f}"]]
    table("four cameras, AV1: steps/s of a core (ours also decodes the JPEGs)", ["", "steps/s"], *rows)
    return [
        *figures,
        at_least(
            "video: of the bare encoder",
            ours / encoder,
            0.9,
            what="`--to=lerobot --images=video`, AV1",
            against="the bare AV1 encoder on decoded frames",
            runs=ratios(videos, encoders),
        ),
    ]


def _merge(converted: Path, sizes: Sizes) -> Figure:
    """Merges the dataset with itself, whose features are equal, as LeRobot requires; duplicates are kept."""
    dataset = DATA / "to_merge"
    shutil.rmtree(dataset, ignore_errors=True)
    shutil.move(converted, dataset)
    ours, theirs = [], []
    for _ in range(sizes.repeats):
        theirs.append(_peer("merger", dataset, 0))
        ours.append(_convert(dataset, dataset, accept="--accept=duplicate_episode"))
    shutil.rmtree(dataset)
    return at_least(
        "merge: times LeRobot's",
        best(ours).rate / best(theirs).rate,
        10,
        what="`convert A B OUT --to=lerobot`, 4 cameras of 64 as images, every episode checked",
        against="LeRobot's own `merge_datasets`",
        runs=ratios(ours, theirs),
    )


def _peer(kind: str, data: Path, steps: int) -> Measurement:
    printed, _ = command([BIN / "python", HERE / "peers/lerobot_peer.py", kind, data, "--steps", steps])
    content = json.loads(printed.splitlines()[-1])
    return Measurement(content, content["steps_per_second"])


def _convert(*data: Path, accept: str = "") -> Measurement:
    output = DATA / "converted"
    shutil.rmtree(output, ignore_errors=True)
    printed, peak = command(
        [BIN / "rlds-beam", "convert", *data, output, "--json", "--to=lerobot", "--fps=10", "--workers=1"]
        + ([accept] if accept else [])
    )
    content = json.loads(printed)
    return Measurement(content, content["steps_per_second"], content["working_seconds"], 0.0, peak, output)
