"""The quality signals: the quantity, unit, threshold, and remedy of each.

A signal is a number for each episode. It describes; it rejects nothing unless the user says so (`--reject`). Sources of
the definitions: lerobot-doctor (github.com/jashshah999/lerobot-doctor), score_lerobot_episodes
(github.com/RoboticsData/score_lerobot_episodes), forge (github.com/arpitg1304/forge), openpi's filter for DROID, and
the papers named at the code of each signal.
"""

from __future__ import annotations

import dataclasses

GROUPS = ("Cameras", "Time", "Motion", "Episodes", "Text and metadata", "Dataset")
"""The groups of signals, in the order of reports."""


@dataclasses.dataclass(frozen=True)
class Signal:
    """A quality signal.

    Attributes:
      name: its name, which is its column in `signals.parquet`.
      group: one of `GROUPS`.
      summary: its meaning, in one line.
      unit: the unit of its values, for example `share of steps`.
      threshold: the default threshold.
      remedy: what to do about such episodes.
      misses: the defects of its kind that it cannot find; empty if there are none.
      relative: whether it compares the episode with the rest of the dataset; then it is known only at the end.
      decodes: whether it needs decoded images (`decoded`).
    """

    name: str
    group: str
    summary: str
    unit: str
    threshold: float
    remedy: str
    misses: str = ""
    relative: bool = False
    decodes: bool = False

    def breaks(self, value: float, threshold: float | None = None) -> bool:
        """Whether a value is beyond the threshold; a NaN (not measurable) never is."""
        return value > (self.threshold if threshold is None else threshold)


def _signal(
    name: str,
    group: str,
    summary: str,
    unit: str,
    threshold: float,
    remedy: str = "",
    *,
    misses: str = "",
    relative: bool = False,
    decodes: bool = False,
) -> tuple[str, Signal]:
    condition = f"--reject='{name} > {threshold:g}'"
    leave_out = f"leave them out: `convert {condition}`"
    if relative:
        leave_out = f"leave them out: `check {condition} --write_exclude=FILE`, then `convert --exclude=FILE`"
    remedy = f"{remedy}; or {leave_out}" if remedy else leave_out
    return name, Signal(name, group, summary, unit, threshold, remedy, misses, relative, decodes)


SIGNALS: dict[str, Signal] = dict(
    [
        _signal(
            "frozen_camera",
            "Cameras",
            "longest run of byte-identical images while the robot moves",
            "share of steps",
            0.1,
            misses="a camera that hangs while the robot rests, fewer than three repeats, images encoded again",
        ),
        _signal(
            "repeated_images",
            "Cameras",
            "images equal to the one before while the robot moves",
            "share of steps",
            0.15,
            "a camera slower than the control loop repeats images: record at its rate",
            misses="repeats while the robot rests, images encoded again",
        ),
        _signal(
            "black_images",
            "Cameras",
            "black images among those decoded",
            "share of decoded images",
            0.1,
            "the connector DropFields leaves out a camera that was off",
            decodes=True,
            misses="black images between those decoded, and dim ones",
        ),
        _signal(
            "overexposed_images",
            "Cameras",
            "overexposed images among those decoded",
            "share of decoded images",
            0.1,
            decodes=True,
            misses="bright images between those decoded",
        ),
        _signal(
            "blurred_images",
            "Cameras",
            "how many times less sharp than usual for this camera",
            "times",
            5,
            relative=True,
            decodes=True,
            misses="a camera that is always blurred, and blur by fast motion in a few images",
        ),
        _signal(
            "dropped_frames",
            "Time",
            "frames missing between timestamps",
            "share of frames",
            0.0,
            "lost frames cannot be restored",
            misses="single frames lost in strong jitter (a fifth of the interval), timestamps written by index",
        ),
        _signal(
            "jitter",
            "Time",
            "standard deviation of the time between steps, over its median",
            "ratio",
            0.1,
            misses="timestamps written by index, which have none",
        ),
        _signal(
            "time_reversals",
            "Time",
            "steps whose timestamp does not increase",
            "share of steps",
            0.0,
            misses="a clock that jumps forward: see `dropped_frames`",
        ),
        _signal(
            "video_length",
            "Time",
            "length of a video, by the metadata, minus that of the episode",
            "frames",
            0.5,
            "record again, or find out which of the two was cut",
            misses="datasets without videos or without a declared rate",
        ),
        _signal(
            "rate_mismatch",
            "Time",
            "difference between the rate of the timestamps and the declared (or usual) rate",
            "ratio",
            0.1,
            "declare the right rate, or resample by the timestamps (Resample)",
            relative=True,
            misses="differences up to a tenth",
        ),
        _signal(
            "jump",
            "Motion",
            "largest change of a value between steps, as a robust z-score of its logarithm",
            "z",
            4,
            relative=True,
            misses="jumps no larger than usual changes: half the range of a joint that also moves fast",
        ),
        _signal(
            "stuck",
            "Motion",
            "a dimension that usually moves stays exactly the same while others move",
            "share of moving steps",
            0.4,
            relative=True,
            misses="sensors with noise, dimensions with few values (grippers, cells of a grid)",
        ),
        _signal(
            "idle_share",
            "Motion",
            "steps in which the robot rests, by openpi's rule for DROID",
            "share of steps",
            0.5,
            "the connectors DropIdleSteps and DropNoOpSteps remove idle steps",
            misses="rest of a robot whose sensor noise is 0.001 or more",
        ),
        _signal(
            "gripper_chatter",
            "Motion",
            "openings and closings of the gripper",
            "per 100 steps",
            20,
            relative=True,
            misses="fewer than four turns, and grippers without a name that are not the last of four or more values",
        ),
        _signal(
            "lag",
            "Motion",
            "steps from an action to the motion that it correlates with, besides the next step",
            "steps",
            3,
            "shift the action with your own connector",
            misses="delays of up to three steps, which fast control loops have; episodes shorter than 15 steps",
        ),
        _signal(
            "outlier_length",
            "Episodes",
            "length, as a robust z-score of its logarithm",
            "|z|",
            5,
            relative=True,
            misses="short episodes in datasets whose lengths vary by several times",
        ),
        _signal(
            "outlier_return",
            "Episodes",
            "return, as a robust z-score",
            "|z|",
            5,
            relative=True,
            misses="returns of 0 and 1, which nearly all episodes have",
        ),
        _signal(
            "duplicate_actions",
            "Episodes",
            "other episodes with exactly the same actions",
            "episodes",
            0,
            "keep one of them",
            relative=True,
            misses="copies that were resampled, cut, or rounded",
        ),
        _signal(
            "near_duplicate",
            "Episodes",
            "other episodes with the same motion, up to noise and small changes of the length",
            "episodes",
            0,
            "keep one of them",
            relative=True,
        ),
        _signal(
            "split_leakage",
            "Episodes",
            "episodes of other splits with the same motion, or with the same rare start and instruction",
            "episodes",
            0,
            "keep them in one split",
            relative=True,
        ),
        _signal(
            "missing_instruction",
            "Text and metadata",
            "no instruction, although the dataset has a field for it",
            "0 or 1",
            0.5,
            "the connector RelabelLanguage writes an instruction, DropUnlabeled drops the episode",
        ),
        _signal(
            "scale_mismatch",
            "Dataset",
            "scale of a field in this dataset or split, over that of the others",
            "times",
            5,
            "convert the units of one of them before merging",
            relative=True,
            misses="ratios up to five, and a group of more than half of the episodes, whose scale is the usual one",
        ),
    ]
)
"""All signals by name, in the order of reports."""
