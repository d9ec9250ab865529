"""For `rule_reference.py`: a dataset that breaks each rule, why the rule exists, and the commands to show."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rlds_beam import EncodedImages, Episode
from rlds_beam.encoding.tfds.rlds_dataset import default_schema, encode_example
from rlds_beam.images.codecs import encode_png
from rlds_beam.testing import cut, features_json, flip_byte, make_episode, shard_paths, write_dataset

DATA = "data/toy/1.0.0"
VALIDATE = f"rlds-beam validate {DATA}"
CONVERT = f"rlds-beam convert {DATA} out"


class Fault(NamedTuple):
    """The example of a rule.

    Attributes:
      why: what would go wrong in training without the rule.
      what: the fault of the dataset.
      make: writes that dataset to the current directory.
      commands: the command that finds the fault, then those that repair or accept it.
      remedy: what to do if no command repairs it.
    """

    why: str
    what: str
    make: Callable[[], Any]
    commands: tuple[str, ...]
    remedy: str = ""


STATE = {"observation": {"state": 3}}
"""For episodes with more observations."""


def episodes(count: int = 4, **options: Any) -> list[Episode]:
    return [make_episode(5, seed=seed, **options) for seed in range(count)]


def write(records: list[Any], **options: Any) -> Path:
    return write_dataset("data", records, name="toy", **options)


def breaking(rule: str) -> Callable[[], Any]:
    """Writes four episodes, of which the third breaks a rule."""
    return lambda: write([*episodes(2), make_episode(5, seed=2, breaks=[rule]), *episodes(4)[3:]])


def flags(steps: str) -> Callable[[], Any]:
    """Writes four episodes, of which the third has steps with these flags."""
    return lambda: write([*episodes(2), make_episode(steps, seed=2), *episodes(4)[3:]])


def with_record(record: Episode | bytes) -> Path:
    """Writes four episodes and one more record, the third one."""
    good = episodes(4)
    payload = record if isinstance(record, bytes) else encode_example(record, default_schema(record))
    return write([*good[:2], payload, *good[2:]], schema=default_schema(good[0]))


def without_reward() -> None:
    episode = make_episode(5, seed=9)
    with_record(episode.replace(steps={path: c for path, c in episode.steps.items() if path != "reward"}))


def short_reward() -> None:
    episode = make_episode(5, seed=9)
    with_record(episode.replace(steps={**episode.steps, "reward": episode.steps["reward"][:4]}))


def long_observation() -> None:
    with_record(make_episode(5, seed=9, observation=7))


def wrong_rate() -> None:
    times = np.arange(5, dtype=np.float32) / 50
    path = write(episodes(columns={"observation/timestamp": times}, observation={"state": 3}))
    (path / "meaning.json").write_text('{"fps": 25}')


def propensities(values: list[float], **more: Any) -> None:
    actions = {"action": np.zeros(5, np.int64)}
    good = episodes(4, columns={**actions, "propensity": np.full(5, 0.5), **more})
    good[2] = good[2].with_columns({"propensity": np.array(values)})
    write(good)


def images(*data: bytes) -> EncodedImages:
    stored = np.empty(5, object)
    stored[:] = data
    return EncodedImages(stored, (8, 8, 3))


def camera(broken: bytes) -> None:
    """Writes four episodes with images; one image of the first episode is `broken`."""
    black = encode_png(np.zeros((1, 8, 8, 3), np.uint8))[0]
    first = make_episode(5, **STATE, columns={"observation/image": images(black, black, broken, black, black)})
    others = [e.with_columns({"observation/image": images(*[black] * 5)}) for e in episodes(4, **STATE)[1:]]
    write([first, *others])


def counts(value: int) -> None:
    good = episodes(4, **STATE, columns={"observation/count": np.arange(5)})
    good[2] = good[2].with_columns({"observation/count": np.array([0, 1, value, 3, 4])})
    write(good)


def prioritized() -> list[Episode]:
    good = episodes(4, columns={"error": np.ones(5, np.float32)})
    good[2] = good[2].with_columns({"error": np.array([1, -1, 1, 1, 1], np.float32)})
    return good


def duplicate() -> None:
    write([*episodes(4), make_episode(5, seed=1)])


def missing_shard() -> None:
    shard_paths(write(episodes(4), shards=2))[1].unlink()


def extra_shard() -> None:
    path = write(episodes(4), shards=2)
    shutil.copy(shard_paths(path)[0], path / "toy-train.tfrecord-00002-of-00003")


def wrong_features() -> None:
    schema = default_schema(episodes(1)[0])
    path = write(episodes(4))
    wrong = dataclasses.replace(schema.steps["action"], dtype="int64")
    schema = dataclasses.replace(schema, steps={**schema.steps, "action": wrong})
    (path / "features.json").write_text(json.dumps(features_json(schema)))


FAULTS = {
    "corrupt_record": Fault(
        "Damaged bytes can decode to plausible numbers. Nothing else in the pipeline would notice.",
        "one byte of the third record was changed, as by a bad disk or a broken download",
        lambda: flip_byte(shard_paths(write(episodes(4)))[0], record=2),
        (VALIDATE, f"{CONVERT} --max_rejected=1"),
        "Fetch the shard again. Or convert the rest: the damage costs only the records it touches.",
    ),
    "not_an_example": Fault(
        "The record has a valid checksum, but something else wrote it: no step can be read from it.",
        "the third record is a line of text",
        lambda: with_record(b"\xff this is not an example"),
        (VALIDATE,),
        "Check that the file belongs to the dataset, or skip the record with `--max_rejected=1`.",
    ),
    "missing_field": Fault(
        "A learner expects every field in every step. Filling in zeros would teach it values nobody recorded.",
        "the third record has no `reward`",
        without_reward,
        (VALIDATE,),
        "Fix the program that wrote the record, or skip the record with `--max_rejected=1`.",
    ),
    "unequal_lengths": Fault(
        "If one field is a step shorter, it is unknown which of its values belong to which step.",
        "the third record has 5 observations and 4 rewards",
        short_reward,
        (VALIDATE,),
        "Fix the program that wrote the record, or skip the record with `--max_rejected=1`.",
    ),
    "wrong_dtype_or_shape": Fault(
        "Read with the wrong shape, the values of one step end up in the next. The rule also covers values that do "
        "not fit their dtype: no source casts 300 to uint8, or NaN to a flag.",
        "the observations of the third record have 7 elements; `features.json` says 3",
        long_observation,
        (VALIDATE,),
        "Use the `features.json` of these records (`--features=FILE`), or skip the record with `--max_rejected=1`.",
    ),
    "empty_episode": Fault(
        "There is nothing to learn from it, and code that takes the first step of each episode fails.",
        "the third episode has no steps",
        breaking("empty_episode"),
        (VALIDATE, f"{CONVERT} --max_rejected=1"),
        "Leave it out.",
    ),
    "missing_is_first": Fault(
        "Without `is_first`, TF-Agents and sequence models continue the previous episode: state, windows and returns "
        "run across the boundary.",
        "the third episode does not start with `is_first`",
        flags("M M M M LT"),
        (VALIDATE, f"{VALIDATE} --repair=missing_is_first"),
    ),
    "unexpected_is_first": Fault(
        "A new episode starts, but the previous one has not ended. A window across both would pair unrelated steps.",
        "the third record holds two episodes, and the first one has no last step",
        flags("F M | F M LT"),
        (VALIDATE, f"{VALIDATE} --repair=unexpected_is_first,missing_is_last"),
    ),
    "missing_is_last": Fault(
        "Without `is_last`, a learner bootstraps from the next step in the file: the first one of another episode.",
        "the recording of the third episode was cut: it has no last step",
        flags("F M M M M"),
        (VALIDATE, f"{VALIDATE} --repair=missing_is_last"),
    ),
    "unexpected_is_last": Fault(
        "Steps after the last step belong to another episode. A window across it would pair unrelated steps.",
        "the third record holds two episodes",
        flags("F M L | F LT"),
        (VALIDATE, f"{VALIDATE} --repair=unexpected_is_last"),
    ),
    "terminal_not_last": Fault(
        "A terminal state has no future: its value is 0. If the episode continues after it, one of the two is wrong.",
        "the last step of the third episode is terminal, but not marked as last",
        flags("F M M M T"),
        (VALIDATE, f"{VALIDATE} --repair=terminal_not_last,missing_is_last"),
    ),
    "non_finite": Fault(
        "One NaN in a batch makes the loss NaN, and then every weight.",
        "a reward of the third episode is NaN",
        breaking("non_finite"),
        (VALIDATE, f"{VALIDATE} --accept=non_finite"),
    ),
    "discount_out_of_range": Fault(
        "A discount above 1 makes returns grow with every step; a negative one flips their sign.",
        "a discount of the third episode is 7",
        breaking("discount_out_of_range"),
        (VALIDATE, f"{VALIDATE} --accept=discount_out_of_range"),
    ),
    "propensity_out_of_range": Fault(
        "Importance weights divide by the propensity. A propensity of 0 gives an infinite weight.",
        "a propensity of the third episode is 0",
        lambda: propensities([0.5, 0.0, 0.5, 0.5, 0.5]),
        (VALIDATE, f"{VALIDATE} --accept=propensity_out_of_range"),
    ),
    "propensity_mismatch": Fault(
        "Off-policy estimates with wrong propensities are biased, and look fine.",
        "a propensity of the third episode is 0.25; the recorded logarithm says 0.5",
        lambda: propensities([0.5, 0.25, 0.5, 0.5, 0.5], log_propensity=np.full(5, np.log(0.5))),
        (VALIDATE, f"{VALIDATE} --accept=propensity_mismatch"),
    ),
    "rate_mismatch": Fault(
        "A policy that is trained at one rate and run at another moves at another speed.",
        "the timestamps are 20 ms apart, so 50 Hz, but `meaning.json` says 25 Hz",
        wrong_rate,
        (VALIDATE,),
        "Correct the rate where it is declared, or resample. `--fail=rate_mismatch` ends the job instead.",
    ),
    "undecodable_image": Fault(
        "A training job that decodes images later would fail at this one, perhaps after hours.",
        "an image of the first episode is not a PNG or JPEG",
        lambda: camera(b"not an image"),
        (VALIDATE, f"{CONVERT} --images=raw --max_rejected=1"),
        "Fetch the dataset again, or leave the episode out. `--decode_images` checks all pixels, not only headers.",
    ),
    "image_too_large": Fault(
        "A few bytes can decode to gigabytes of pixels.",
        "an image of the first episode has 4097 x 4096 pixels",
        lambda: camera(encode_png(np.zeros((1, 4097, 4096, 3), np.uint8))[0]),
        (VALIDATE,),
        "Resize it, or set another limit with `--max_image_pixels`.",
    ),
    "image_size_mismatch": Fault(
        "A batch, and LeRobot's formats, need images of one size.",
        "an image of the first episode is 9 pixels high; `features.json` says 8",
        lambda: camera(encode_png(np.zeros((1, 9, 8, 3), np.uint8))[0]),
        (VALIDATE,),
        "If the size may vary, declare it open in `features.json` (null), and give all images one size: "
        "`--connectors='ResizeImages(96, 128, fit=\"pad\")'`.",
    ),
    "duplicate_episode": Fault(
        "A copy counts twice in every mean and every gradient, and can be in the training and the test split at once.",
        "the fifth episode is a copy of the second",
        duplicate,
        (VALIDATE, f"{VALIDATE} --accept=duplicate_episode"),
    ),
    "signal_limit": Fault(
        "An episode can keep every rule and still be useless: the robot rests, or a camera is frozen. `--reject` turns "
        "a [signal](signals.md) into a rule.",
        "the third episode has 2 steps; the others have 5",
        lambda: write([*episodes(2), make_episode(2, seed=2), *episodes(4)[3:]]),
        (f"{VALIDATE} --reject='steps < 5'",),
        "Look at the episode with `rlds-beam browse`, then change `--reject`, or leave the episode out.",
    ),
    "too_long": Fault(
        "Reverb and padded batches have a maximum length. Cutting an episode would hide its end from the learner.",
        "all episodes have 5 steps, and items may have 4",
        lambda: write(episodes(4)),
        (
            f"{CONVERT} --items=episodes --max_sequence_length=4",
            f"{CONVERT} --items=episodes --max_sequence_length=5 --overwrite",
        ),
    ),
    "not_representable": Fault(
        "Some formats cannot hold every episode. Changing its values so that it fits would be silent damage.",
        "the third episode has one step and so no transition, which SCOPE-RL needs",
        flags("FL"),
        (
            f"{CONVERT} --to=scope_rl --behavior_policy=random",
            f"{CONVERT} --to=scope_rl --behavior_policy=random --max_rejected=1",
        ),
        "Write another format, or leave the episode out.",
    ),
    "cast": Fault(
        "A cast that changes values, for example 300 to int8, gives the learner numbers nobody recorded.",
        "a count of the third episode is 300",
        lambda: counts(300),
        (
            f"{CONVERT} --cast=observation/count=int8",
            f"{CONVERT} --cast=observation/count=int16 --overwrite",
        ),
    ),
    "bad_priority": Fault(
        "A prioritized Reverb table samples items in proportion to their priorities: NaN or a negative one breaks it.",
        "a priority of the third episode is -1",
        lambda: write(prioritized()),
        (f"rlds-beam push {DATA} --reverb=HOST:PORT --table=replay --priority=policy_info/error",),
        "Use another field, or a function that returns numbers of at least 0: `--priority=module:function`.",
    ),
    "missing_shard": Fault(
        "Training on part of a dataset works, and nothing in the result shows that the rest was missing.",
        "the second of two shards was deleted",
        missing_shard,
        (VALIDATE, f"{VALIDATE} --accept=missing_shard"),
    ),
    "short_shard": Fault(
        "A file that was cut exactly between two records looks complete. Only the counts show what is missing.",
        "the last record of the second shard is missing",
        lambda: cut(shard_paths(write(episodes(4), shards=2))[1], record=1),
        (VALIDATE, f"{VALIDATE} --accept=short_shard"),
    ),
    "extra_shard": Fault(
        "A file of an earlier, larger version of the dataset would bring its old episodes back.",
        "the directory has a shard that `dataset_info.json` does not name",
        extra_shard,
        (VALIDATE, f"{VALIDATE} --accept=extra_shard"),
        "Remove the file. `--accept` ignores it.",
    ),
    "schema_mismatch": Fault(
        "If `features.json` describes other data than the records hold, every episode would be read wrongly.",
        "`features.json` says that actions are int64, and the records hold floats",
        wrong_features,
        (VALIDATE,),
        "Use the `features.json` that belongs to the records: `--features=FILE`.",
    ),
}
