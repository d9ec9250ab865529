"""Draws the diagrams of the documentation into `pictures/`, light and dark.

    python docs/diagrams.py

`make docs` runs it, and a test fails if a file differs from what it draws.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

from svg import Picture, files, write

from rlds_beam.trajectories.items import PAD, windows
from rlds_beam.trajectories.options import ItemOptions

WIDTH = 480
"""The width of every diagram: a phone shows it at three quarters of its size."""

DIAGRAMS: dict[str, Callable[[], Picture]] = {}
"""File name -> the function that draws it."""


def diagram(draw: Callable[[], Picture]) -> Callable[[], Picture]:
    """Register a diagram under the name of its function."""
    DIAGRAMS[draw.__name__] = draw
    return draw


@diagram
def episode() -> Picture:
    picture = Picture(
        WIDTH,
        250,
        "An episode",
        "Four RLDS steps. Each holds an observation, the action taken there, its reward and discount. "
        "The last step holds only an observation; its other values are void. Four steps make three transitions.",
    )
    left, width, gap = 102, 84, 8
    for row, (name, y) in enumerate({"observation": 66, "action": 96, "reward": 126}.items()):
        picture.text(left - 8, y + 17, name, size=14, anchor="end", color="muted")
        for step in range(4):
            x = left + step * (width + gap)
            void = step == 3 and row > 0
            label = "void" if void else f"{'oar'[row]}{step}"
            picture.box(
                x,
                y,
                width,
                24,
                label,
                size=14,
                fill="panel" if void else "accent-soft",
                stroke="line" if void else "accent",
                color="muted" if void else "ink",
                dashed=void,
            )
    for step, flag in enumerate(("is_first", "", "", "is_last")):
        x = left + step * (width + gap) + width / 2
        picture.text(x, 36, f"step {step}", size=14, anchor="middle", bold=True)
        picture.text(x, 55, flag, size=13, anchor="middle", mono=True, color="muted")
    for transition in range(3):
        x = left + transition * (width + gap) + width / 2
        picture.line((x, 166), (x, 176), (x + width + gap, 176), (x + width + gap, 166), color="muted")
        picture.text(x + (width + gap) / 2, 194, f"transition {transition}", size=13, anchor="middle")
    picture.text(286, 232, "4 steps = 3 transitions", size=14, anchor="middle", color="muted")
    return picture


def row(picture: Picture, y: float, name: str, values: Sequence[str], marked: Sequence[int] = ()) -> None:
    """A named row of cells, those of `marked` in color."""
    picture.text(150, y + 19, name, size=13, anchor="end", mono=True)
    for i, value in enumerate(values):
        fill, stroke = ("warn-soft", "warn") if i in marked else ("panel", "line")
        picture.box(162 + i * 78, y, 70, 28, value, size=13, fill=fill, stroke=stroke, mono=True)


@diagram
def frames() -> Picture:
    picture = Picture(
        WIDTH,
        250,
        "The frames of a terminal episode of four steps",
        "Four frames with step types FIRST, MID, MID, LAST and next step types MID, MID, LAST, FIRST. By default the "
        "discount is 0 in the last two frames; with terminal_discount=boundary only in the last one.",
    )
    for i in range(4):
        picture.text(162 + i * 78 + 35, 24, f"frame {i}", size=14, anchor="middle", bold=True)
    row(picture, 36, "step_type", ("FIRST", "MID", "MID", "LAST"))
    row(picture, 70, "next_step_type", ("MID", "MID", "LAST", "FIRST"))
    picture.text(14, 132, "discount, with --terminal_discount=", size=13, mono=True, color="muted")
    row(picture, 144, "transition", ("1", "1", "0", "0"), marked=(2,))
    row(picture, 178, "boundary", ("1", "1", "1", "0"), marked=(2,))
    picture.text(162 + 2 * 78 + 35, 228, "steps into the", size=13, anchor="middle", color="muted")
    picture.text(162 + 2 * 78 + 35, 244, "terminal state", size=13, anchor="middle", color="muted")
    return picture


CELL = 38


def panel(picture: Picture, y: float, caption: str, names: Sequence[str], options: ItemOptions) -> float:
    """The frames, and below them the resulting items; returns the y below the panel."""
    left = 92
    picture.text(14, y + 16, caption, size=14, bold=True)
    y += 28
    picture.text(left - 10, y + 19, "frames", size=14, anchor="end", color="muted")
    for i, name in enumerate(names):
        picture.box(left + i * CELL, y, CELL - 4, 28, name, size=14, bold=True)
    for k, item in enumerate(windows(len(names), options).tolist()):
        y += 34
        picture.text(left - 10, y + 19, f"item {k}", size=14, anchor="end", color="muted")
        for i, frame in enumerate(item, start=item[0]):
            place = (left + i * CELL, y, CELL - 4, 28)
            if frame == PAD:
                picture.box(*place, "P", size=14, fill="warn-soft", stroke="warn", dashed=True)
            else:
                picture.box(*place, names[frame], size=14, fill="accent-soft", stroke="accent")
    return y + 52


def sequences(length: int, **options: object) -> ItemOptions:
    return ItemOptions(items="sequences", sequence_length=length, **options)  # type: ignore[arg-type]


SIX = "012345"


@diagram
def windows_of_frames() -> Picture:
    picture = Picture(
        WIDTH,
        572,
        "Pairs, sequences, and a stride",
        "Six frames. Pairs: five items of two adjacent frames. Sequences of four: three items, which start at frames "
        "0, 1 and 2. Sequences of four with a stride of two: two items, which start at frames 0 and 2.",
    )
    y = panel(picture, 4, "--items=pairs", SIX, ItemOptions())
    y = panel(picture, y, "--items=sequences --sequence_length=4", SIX, sequences(4))
    panel(picture, y, "… --stride_length=2", SIX, sequences(4, stride_length=2))
    return picture


@diagram
def windows_with_padding() -> Picture:
    picture = Picture(
        WIDTH,
        408,
        "Padding and tiling",
        "Sequences of four. An episode of three frames, padded, gives one item: its frames and one padding frame P. "
        "An episode of five frames with a stride of two, padded, gives one item; tiled, it gives three, "
        "of which the last two end in padding frames.",
    )
    y = panel(picture, 6, "3 frames, --pad_end_of_episodes", "012", sequences(4, pad_end_of_episodes=True))
    padded = {"pad_end_of_episodes": True, "stride_length": 2}
    y = panel(picture, y, "5 frames, stride 2, --pad_end_of_episodes", "01234", sequences(4, **padded))
    options = sequences(4, **padded, tile_end_of_episodes=True)
    panel(picture, y, "… and --tile_end_of_episodes", "01234", options)
    return picture


@diagram
def windows_across_episodes() -> Picture:
    picture = Picture(
        WIDTH,
        180,
        "Windows across episodes",
        "Episode a of four frames is followed by episode b, also of four. Sequences of four with a stride of two run "
        "over the stream of both: the second item holds the frames a2, a3, b0 and b1.",
    )
    names = ("a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3")
    panel(picture, 6, "--across_episodes, stride 2", names, sequences(4, across_episodes=True, stride_length=2))
    return picture


@diagram
def pipeline() -> Picture:
    steps = {
        "ReadFromRlds": ("shards in parallel", "Episode: columns [T, ...]"),
        "ValidateEpisodes": ("boundaries per episode key", "is_first on step 0, is_last on T - 1"),
        "ConnectEpisodes": ("edit, filter, resize, relabel", "Episode: columns [T, ...]"),
        "ConvertToTrajectories": ("overlapping pairs [K, 2, ...]", "padded sequences [K, L, ...]"),
        "WriteToTrajectoryRecords": ("TFRecords for later replay", ""),
        "WriteToReverb": ("or tables, one observer a worker", ""),
    }
    picture = Picture(
        WIDTH,
        386,
        "The pipeline",
        "ReadFromRlds reads shards in parallel. ValidateEpisodes checks the boundaries of each episode. "
        "ConnectEpisodes edits episodes. ConvertToTrajectories makes overlapping pairs and padded sequences. "
        "WriteToTrajectoryRecords writes TFRecords, or WriteToReverb fills tables. WriteRejected keeps bad episodes.",
    )
    y = 8
    for i, (name, (first, second)) in enumerate(steps.items()):
        last = not second
        picture.box(
            14, y, 206, 40, name, size=15, fill="ok-soft" if last else "accent-soft", stroke="ok" if last else "accent"
        )
        if last:
            picture.text(234, y + 25, first, size=14)
        else:
            picture.text(234, y + 17, first, size=14)
            picture.text(234, y + 35, second, size=14, color="muted")
        if i < 4:
            picture.arrow((117, y + 40), (117, y + 59))
        y += 60 if i < 4 else 48
    picture.box(14, y, 206, 40, "WriteRejected", size=15, fill="bad-soft", stroke="bad")
    picture.text(234, y + 17, "bad episodes of every step:", size=14)
    picture.text(234, y + 35, "original bytes, and the reason", size=14, color="muted")
    return picture


@diagram
def path_of_an_episode() -> Picture:
    picture = Picture(
        WIDTH,
        250,
        "The path of an episode",
        "A record is read, checked, and edited by connectors, and the result is written. The check sends bad episodes "
        "to the folder rejected, with their bytes and the reason; a connector may drop episodes, which are counted "
        "under its name. Read equals written plus rejected plus dropped.",
    )
    for i, (name, below) in enumerate(
        {"read": "decode", "check": "repair", "connect": "edit", "write": "commit"}.items()
    ):
        x = 14 + i * 118
        picture.box(x, 40, 96, 62, f"{name}\n{below}", size=15, fill="accent-soft", stroke="accent")
        if i:
            picture.arrow((x - 22, 71), (x - 1, 71))
    picture.text(62, 26, "source", anchor="middle", size=14, color="muted")
    picture.text(416, 26, "output", anchor="middle", size=14, color="muted")
    picture.arrow((180, 102), (180, 146), color="bad")
    picture.box(112, 147, 136, 48, "rejected/\nbytes and reason", size=14, fill="bad-soft", stroke="bad")
    picture.arrow((298, 102), (298, 146), color="warn")
    picture.box(264, 147, 150, 48, "dropped, counted\nby connector", size=14, fill="warn-soft", stroke="warn")
    picture.text(240, 232, "read = written + rejected + dropped", size=15, anchor="middle", bold=True)
    return picture


@diagram
def ranges() -> Picture:
    picture = Picture(
        WIDTH,
        244,
        "Shards, ranges, and output shards",
        "The shards of a split lie end to end: two small ones, one large one, one small one. They are cut into four "
        "ranges of about equal size: the large shard is spread over several ranges, and small shards share one. "
        "Each range becomes one output shard.",
    )
    picture.text(14, 24, "input shards, end to end", size=14, bold=True)
    x = 14.0
    for i, wide in enumerate((70, 60, 210, 112)):
        picture.box(x, 34, wide, 34, str(i), size=14, radius=2)
        x += wide
    picture.text(14, 102, "ranges of about 32 MB", size=14, bold=True)
    picture.text(14, 234, "output shards", size=14, bold=True)
    for i in range(4):
        left = 14 + i * 113
        if i:
            picture.line((left, 28), (left, 74), color="accent", width=2)
        picture.box(left + 2, 112, 109, 34, f"range {i}", size=14, fill="accent-soft", stroke="accent")
        picture.arrow((left + 56, 147), (left + 56, 177))
        picture.box(left + 2, 178, 109, 34, f"0000{i}-of-00004", size=12.5, fill="ok-soft", stroke="ok")
    return picture


@diagram
def resuming() -> Picture:
    picture = Picture(
        WIDTH,
        290,
        "A killed job and its rerun",
        "When the job was killed, ranges 0 and 1 had a shard and a commit, and range 2 was a temporary file. "
        "The rerun keeps ranges 0 and 1, writes 2 and 3, removes the temporary file, and writes the manifest last.",
    )
    kept_files = ("plan.json", "shard 0 + commit", "shard 1 + commit")
    columns = {
        "after kill -9": (*kept_files, ".shard 2 … .tmp"),
        "after the rerun": (*kept_files, "shard 2 + commit", "shard 3 + commit", "manifest.json"),
    }
    for i, (name, entries) in enumerate(columns.items()):
        x = 14 + i * 240
        picture.text(x + 106, 24, name, anchor="middle", bold=True)
        for k, entry in enumerate(entries):
            y = 38 + k * 40
            kept, temporary = k < 3, entry.endswith("tmp")
            fill, stroke = (
                ("ok-soft", "ok") if kept else ("bad-soft", "bad") if temporary else ("accent-soft", "accent")
            )
            picture.box(x, y, 212, 32, entry, size=14, fill=fill, stroke=stroke, dashed=temporary)
            if kept and i == 0:
                picture.arrow((x + 213, y + 16), (x + 239, y + 16), color="ok")
    return picture


@diagram
def exactly_once() -> Picture:
    picture = Picture(
        WIDTH,
        300,
        "An item that is sent twice",
        "An acknowledgment is lost, so the item is sent again. With random keys the table then holds two items. "
        "With a key derived from the item, the server knows the key, and the table holds one.",
    )
    for i, (title, keys, held) in enumerate(
        (
            ("Reverb's clients: a random key", ("key 17", "key 42"), ("item 17", "item 42")),
            ("rlds-beam: a key derived from the item", ("key 5e", "key 5e"), ("item 5e",)),
        )
    ):
        y = 6 + i * 148
        stroke = "ok" if i else "bad"
        picture.text(14, y + 18, title, bold=True)
        picture.box(14, y + 32, 92, 88, "worker", size=15)
        picture.box(330, y + 32, 136, 88, size=15)
        picture.text(398, y + 52, "table", anchor="middle", size=14, color="muted")
        for k, item in enumerate(held):
            picture.box(342, y + 60 + k * 29, 112, 25, item, size=13, fill=f"{stroke}-soft", stroke=stroke, mono=True)
        for k, key in enumerate(keys):
            down = y + 58 + k * 40
            picture.text(218, down - 7, f"{('send', 'send again')[k]}, {key}", size=13, anchor="middle")
            picture.arrow((107, down), (329, down))
    return picture


LAYERS = (
    ("cli",),
    ("pipelines",),
    ("transforms", "drop_in"),
    ("viewing", "runners"),
    ("jobs", "writing"),
    ("recording", "reverb"),
    ("datasets",),
    ("formats", "hub", "terminal"),
    ("output",),
    ("processing",),
    ("connectors", "trajectories"),
    ("checking",),
    ("reading",),
    ("encoding",),
    ("episodes",),
    ("images",),
)


@diagram
def layers() -> Picture:
    picture = Picture(
        WIDTH,
        14 + 38 * len(LAYERS),
        "The packages, in layers",
        "From top to bottom: " + "; ".join(", ".join(layer) for layer in LAYERS) + ". Imports point down only.",
    )
    for i, layer in enumerate(LAYERS):
        wide = 132
        left = (WIDTH - len(layer) * (wide + 16) + 16) / 2
        for k, name in enumerate(layer):
            beam = name in ("pipelines", "runners", "transforms")
            fill, stroke = ("warn-soft", "warn") if beam else ("accent-soft", "accent")
            picture.box(left + k * (wide + 16), 8 + i * 38, wide, 30, name, size=14, fill=fill, stroke=stroke)
    return picture


def drawn() -> dict[Path, str]:
    """Path -> content of all files."""
    pictures = {name.replace("_", "-"): draw() for name, draw in DIAGRAMS.items()}
    return {path: text for name, picture in pictures.items() for path, text in files(name, picture).items()}


if __name__ == "__main__":
    write(drawn())
