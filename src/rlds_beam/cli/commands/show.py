"""`rlds-beam show`: one episode in the terminal, or as a picture or a video."""

from __future__ import annotations

import dataclasses
import re
import shutil
import sys
from typing import TYPE_CHECKING

from rlds_beam.errors import UsageError
from rlds_beam.formats.options import InputOptions
from rlds_beam.options import option

if TYPE_CHECKING:
    from rlds_beam.viewing.show import ShownEpisode

__all__ = ["ShowConfig", "show"]

USAGE = "INPUT"
EXAMPLES = """
    rlds-beam show data/point_mass/1.0.0 --episode=3
    rlds-beam show data/point_mass/1.0.0 --episode=point_mass/1.0.0:train:00000@0
    rlds-beam show data/planar_arm/1.0.0 --output=strip.png --curves
"""


@dataclasses.dataclass(frozen=True)
class ShowConfig(InputOptions):
    """Show one episode: its fields as curves, its images, the rules that it breaks, and its quality signals."""

    input: str = option(dataclasses.MISSING, "dataset, or what convert wrote", positional=True)
    _: dataclasses.KW_ONLY
    episode: str = option("0", "its number, from 0 (-1 is the last one), or its key", metavar="EPISODE")
    output: str | None = option(
        None,
        "file to write it to: .png or .jpg (pictures of all cameras), or .mp4 (needs the extra lerobot)",
        metavar="FILE",
        short=("-o",),
    )
    curves: bool = option(False, "draw curves beneath the images of a .png, .jpg, or .mp4 file")
    frames: int = option(8, "pictures of each camera, evenly spaced; not for videos", least=1)
    height: int | None = option(None, "height of a picture in pixels", metavar="N", least=8)
    fps: float | None = option(None, "frames per second, if not in the data", metavar="N", least=0.001)


def show(config: ShowConfig) -> ShownEpisode:
    """Reads the episode, and writes it to `config.output`, if that is set.

    Raises:
      UsageError: there is no such dataset or episode, or it has nothing to draw.
      RldsBeamError: a package is missing, or the file cannot be written.
    """
    from rlds_beam.datasets.dataset import Dataset
    from rlds_beam.terminal import outcome
    from rlds_beam.viewing import pictures
    from rlds_beam.viewing import show as showing

    if config.output is not None:
        pictures.kind_of_file(config.output)
        outcome.check_writable(config.output, "--output", config.input)
    opened = showing.open_for_viewing(config)
    number = int(config.episode) if re.fullmatch(r"-?\d{1,18}", config.episode) else None
    if not isinstance(opened, Dataset):
        shown = showing.shown_episode(opened, config.episode if number is None else number)
    elif number is not None:
        shown = showing.shown_row(opened, number)
    else:
        raise UsageError(f"--episode={config.episode}: the rows of {config.input} have numbers, not keys")
    if config.fps is not None:
        if shown.fps not in (None, config.fps):
            raise UsageError(f"--fps={config.fps:g}: the data is {shown.fps:g} Hz: leave --fps out")
        shown = dataclasses.replace(shown, fps=config.fps)
    if config.output is not None:
        drawn = pictures.FileOptions(config.frames, config.height, config.curves, shown.fps, shown.names)
        pictures.write_episode(shown.episode, config.output, drawn)
    return shown


def main(config: ShowConfig) -> int:
    """Runs the command: prints the episode and returns the exit code."""
    from rlds_beam.terminal.tables import cut
    from rlds_beam.viewing.pictures import DEFAULT_FPS

    shown = show(config)
    if config.output is not None:
        print(f"wrote     {config.output}: {shown.title}")
        if config.output.lower().endswith(".mp4"):
            rate = f"{shown.fps:g} Hz" if shown.fps else f"{DEFAULT_FPS:g} Hz: the data does not say it; give --fps"
            print(f"rate      {rate}")
        return 0
    columns = shutil.get_terminal_size().columns
    print("\n".join(cut(line, columns) if sys.stdout.isatty() else line for line in shown.lines(columns)))
    return 0
