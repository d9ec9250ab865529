"""The rules for episodes and datasets, advice for violations, and the options that set what to do about them."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.errors import UsageError
from rlds_beam.images.headers import MAX_PIXELS
from rlds_beam.options import Options, option
from rlds_beam.text import did_you_mean

Policy = Literal["fail", "reject", "repair", "accept"]

RULES: dict[str, str] = {
    "corrupt_record": "the record's bytes do not match their checksum, or are cut short",
    "not_an_example": "the record is not a tf.Example with RLDS steps",
    "missing_field": "a field of the schema is missing from the record",
    "unequal_lengths": "step fields have different numbers of steps",
    "wrong_dtype_or_shape": "a field's dtype or shape differs from the schema",
    "empty_episode": "the episode has no steps",
    "missing_is_first": "the first step is not is_first",
    "unexpected_is_first": "a step after the first is is_first, but the step before it is not is_last",
    "missing_is_last": "the last step is not is_last (the episode never ends)",
    "unexpected_is_last": "a step before the last is is_last (several episodes in one record)",
    "terminal_not_last": "a step is is_terminal but not is_last",
    "non_finite": "a float field holds NaN or infinity (other than in the void last step)",
    "discount_out_of_range": "a discount is not within [0, 1]",
    "propensity_out_of_range": "a propensity is not one float above 0, or is above 1 although actions are discrete",
    "propensity_mismatch": "a propensity differs from log_propensity, or from the result of --propensity_fn",
    "rate_mismatch": "the timestamps have another rate than the dataset declares",
    "undecodable_image": "an image cannot be decoded",
    "image_too_large": "an image has more pixels than allowed",
    "image_size_mismatch": "an image has another size than the schema, or than the output's other images",
    "signal_limit": "a signal is beyond the limit that --reject sets",
    "too_long": "the episode has more frames than --max_sequence_length",
    "not_representable": "the output format cannot hold the episode",
    "cast": "--cast would change a value (out of range, a fraction lost, infinite)",
    "bad_priority": "the priority of an item is negative, NaN, or infinite",
    "duplicate_episode": "the episode repeats an earlier one",
    "missing_shard": "a shard listed in dataset_info.json is missing",
    "short_shard": "a shard's number of records differs from the dataset's metadata",
    "extra_shard": "a shard is not listed in dataset_info.json",
    "schema_mismatch": "the dataset's files do not match its schema",
}
"""Rule -> the meaning of a violation, in the order of reports."""

RULE_GROUPS = {
    "Records": ("corrupt_record", "not_an_example", "missing_field", "unequal_lengths", "wrong_dtype_or_shape"),
    "Episode boundaries": (
        "empty_episode",
        "missing_is_first",
        "unexpected_is_first",
        "missing_is_last",
        "unexpected_is_last",
        "terminal_not_last",
    ),
    "Values": (
        "non_finite",
        "discount_out_of_range",
        "propensity_out_of_range",
        "propensity_mismatch",
        "rate_mismatch",
        "undecodable_image",
        "image_too_large",
        "image_size_mismatch",
        "duplicate_episode",
        "signal_limit",
    ),
    "Output": ("too_long", "not_representable", "cast", "bad_priority"),
    "The dataset": ("missing_shard", "short_shard", "extra_shard", "schema_mismatch"),
}
"""Topic -> its rules, for the help and the reference page."""

DATASET_RULES = RULE_GROUPS["The dataset"]
"""The rules for a whole dataset, checked before any episode."""

REPAIRABLE = ("missing_is_first", "unexpected_is_first", "missing_is_last", "unexpected_is_last", "terminal_not_last")
VALUE_RULES = (
    "non_finite",
    "discount_out_of_range",
    "propensity_out_of_range",
    "propensity_mismatch",
    "duplicate_episode",
)


REPORTED = ("rate_mismatch",)
"""The rules whose violations are only counted by default: which of two contradicting values is wrong is unknown."""


POLICIES: dict[str, tuple[Policy, ...]] = {
    **dict.fromkeys(RULES, ("fail", "reject")),
    **dict.fromkeys(REPAIRABLE, ("fail", "reject", "repair")),
    **dict.fromkeys(VALUE_RULES + DATASET_RULES, ("fail", "reject", "accept")),
    **dict.fromkeys(REPORTED, ("fail",)),
}
"""Rule -> its possible policies. An episode that is not a valid trajectory cannot be accepted."""

ADVICE: dict[str, str] = {
    "corrupt_record": "download the shard again, or leave these records out",
    "not_an_example": "check that this file belongs to the dataset",
    "missing_field": "features.json does not describe these records",
    "unequal_lengths": "features.json does not describe these records, or the writer was interrupted",
    "wrong_dtype_or_shape": "features.json does not describe these records",
    "empty_episode": "an episode without steps cannot be used",
    "missing_is_first": "--repair=missing_is_first marks the first step as is_first",
    "unexpected_is_first": "--repair=unexpected_is_first splits the record before each such step",
    "missing_is_last": "--repair=missing_is_last marks the final step as a truncation",
    "unexpected_is_last": "--repair=unexpected_is_last splits the record after each such step",
    "terminal_not_last": "--repair=terminal_not_last marks such a step as is_last",
    "non_finite": "--accept=non_finite accepts them",
    "discount_out_of_range": "--accept=discount_out_of_range accepts them",
    "propensity_out_of_range": "--accept=propensity_out_of_range accepts them, but they have no importance weights",
    "propensity_mismatch": "weights from wrong propensities are biased; --accept=propensity_mismatch accepts them",
    "rate_mismatch": "correct the rate, or resample; --fail=rate_mismatch ends the job",
    "undecodable_image": "download the dataset again, or leave these episodes out",
    "image_too_large": "--max_image_pixels allows larger images",
    "image_size_mismatch": "if the dataset leaves the size open, --connectors='ResizeImages(HEIGHT, WIDTH, "
    'fit="pad")\' gives all images one; if it declares a wrong size, correct that (RLDS: features.json)',
    "signal_limit": "look at the episode (rlds-beam browse), then change --reject or leave the episode out",
    "too_long": "--bypass_partial_episodes skips them; a larger --max_sequence_length includes them",
    "not_representable": "another --to may be able to hold these episodes",
    "cast": "--cast=LEAF=DTYPE! writes the changed value; another dtype may hold the original",
    "bad_priority": "--priority=module:function must return finite numbers of 0 or more",
    "duplicate_episode": "--accept=duplicate_episode keeps every copy",
    "missing_shard": "download the dataset again",
    "short_shard": "download the shard again; the metadata may belong to another version",
    "extra_shard": "remove files left over from an earlier write",
    "schema_mismatch": "build the dataset again with one schema",
}
"""Rule -> advice for users."""


_IMAGE_RULES = frozenset(("undecodable_image", "image_too_large", "image_size_mismatch"))


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    """What to do with an episode that breaks a rule.

    If a rule is named several times, fail wins over repair, and repair over accept.
    """

    accept: tuple[str, ...] = option((), "rules that episodes may break (comma-separated)", metavar="RULES")
    repair: tuple[str, ...] = option((), "rules whose violations are repaired, if possible", metavar="RULES")
    fail: tuple[str, ...] = option((), "rules whose first violation ends the job", metavar="RULES")
    max_image_pixels: int = option(MAX_PIXELS, "most pixels of an image", least=1)
    decode_images: bool = option(False, "decode every image to check it, not only its header")
    propensity_fn: str | None = option(
        None,
        "module:function that takes an episode's steps (columns by name) and returns the propensity of each action; "
        "propensity_mismatch if the recorded one differs",
        code=True,
        metavar="FUNCTION",
    )
    reject: str | None = option(None, "also reject by signal: 'frozen_camera > 0.2, steps < 5'", metavar="CONDITIONS")
    check_unused: bool = option(False, "also check unused fields, and void values of last steps")

    def __post_init__(self) -> None:
        super().__post_init__()
        for policy in ("accept", "repair", "fail"):
            for rule in getattr(self, policy):
                if rule not in RULES:
                    hint = did_you_mean(rule, RULES)
                    raise UsageError(f"--{policy}={rule}: unknown rule{hint}")
                if policy not in POLICIES[rule]:
                    can = ", ".join(r for r in RULES if policy in POLICIES[r])
                    raise UsageError(f"--{policy}={rule}: {rule} cannot be {policy}ed; these can: {can}")
        self.check_reject()

    @property
    def needs_images(self) -> bool:
        """Whether the options ask for checks that read images which nothing else needs, or run user code on steps."""
        return (
            self.check_unused
            or self.decode_images
            or self.max_image_pixels != MAX_PIXELS
            or self.reject is not None
            or self.propensity_fn is not None
            or not _IMAGE_RULES.isdisjoint(self.fail)
        )

    def check_reject(self) -> None:
        """Raises UsageError if `reject` is malformed, or needs the whole dataset."""
        if self.reject is not None:
            from rlds_beam.checking.signals.conditions import check_single, parse_reject

            check_single(parse_reject(self.reject))

    def policy(self, rule: str) -> Policy:
        """The policy for an episode that breaks `rule`."""
        if rule in self.fail:
            return "fail"
        if rule in self.repair:
            return "repair"
        if rule in self.accept or rule in REPORTED:
            return "accept"
        return "reject"
