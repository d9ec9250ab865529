"""The rules for an episode and for a dataset, and what can be done about a breach."""

from __future__ import annotations

from typing import Literal

Policy = Literal["fail", "reject", "repair", "accept"]

RULES: dict[str, str] = {
    "corrupt_record": "the record's bytes do not match their checksum, or are cut short",
    "not_an_example": "the record is not a tf.Example with RLDS steps",
    "missing_field": "a field that the schema names is not in the record",
    "unequal_lengths": "step fields have different numbers of steps",
    "wrong_dtype_or_shape": "a field is of another dtype or shape than the schema says",
    "empty_episode": "the episode has no steps",
    "first_not_first": "the first step is not is_first",
    "first_inside": "a step after the first is is_first, and the step before it is not is_last",
    "last_not_last": "the last step is not is_last (the episode never ends)",
    "last_inside": "a step before the last is is_last (several episodes in one record)",
    "terminal_not_last": "a step is is_terminal but not is_last",
    "non_finite": "a float field holds NaN or infinity (other than in the void last step)",
    "discount_out_of_range": "a discount is not within [0, 1]",
    "propensity_out_of_range": "a propensity is not one float above 0, or is above 1 where actions are discrete",
    "propensity_mismatch": "a propensity is not the one that log_propensity, or the policy of --propensity_fn, gives",
    "undecodable_image": "an image cannot be decoded",
    "image_too_large": "an image has more pixels than allowed, or another size than the schema says",
    "too_long": "the episode has more frames than --max_sequence_length allows in an item",
    "not_representable": "the format that is written cannot hold the episode",
    "cast": "a value is another one after its --cast (out of range, a fraction lost, infinite)",
    "bad_priority": "the priority of an item is negative, NaN or infinite",
    "duplicate_episode": "the same bytes stand in the dataset a second time",
    "missing_shard": "dataset_info.json names a shard that is not there",
    "short_shard": "a shard holds fewer or more records than the dataset's metadata says",
    "extra_shard": "there is a shard that dataset_info.json does not name",
    "schema_mismatch": "the dataset's files disagree on what they hold",
}
"""Every rule's id and what a breach of it means. The order is the order of reports."""

DATASET_RULES = ("missing_shard", "short_shard", "extra_shard", "schema_mismatch")
"""Rules of a whole dataset: looked at before any episode is."""

REPAIRABLE = ("first_not_first", "first_inside", "last_not_last", "last_inside", "terminal_not_last")
VALUE_RULES = (
    "non_finite", "discount_out_of_range", "propensity_out_of_range", "propensity_mismatch", "duplicate_episode"
)  # fmt: skip


def _policies(rule: str) -> tuple[Policy, ...]:
    repair: tuple[Policy, ...] = ("repair",) if rule in REPAIRABLE else ()
    accept: tuple[Policy, ...] = ("accept",) if rule in VALUE_RULES + DATASET_RULES else ()
    return ("fail", "reject", *repair, *accept)


POLICIES: dict[str, tuple[Policy, ...]] = {rule: _policies(rule) for rule in RULES}
"""The policies that make sense for each rule. What has no meaning as a trajectory cannot be accepted."""

ADVICE: dict[str, str] = {
    "corrupt_record": "fetch the shard again, or leave these records out",
    "not_an_example": "is this file one of this dataset's?",
    "missing_field": "features.json does not describe these records",
    "unequal_lengths": "features.json does not describe these records, or the writer was interrupted",
    "wrong_dtype_or_shape": "features.json does not describe these records",
    "empty_episode": "nothing can be made of an episode without steps",
    "first_not_first": "--repair=first_not_first marks the first step as is_first",
    "first_inside": "--repair=first_inside splits the record before each such step",
    "last_not_last": "--repair=last_not_last marks the final step as a truncation",
    "last_inside": "--repair=last_inside splits the record after each such step",
    "terminal_not_last": "--repair=terminal_not_last marks such a step as is_last",
    "non_finite": "--accept=non_finite lets them through",
    "discount_out_of_range": "--accept=discount_out_of_range lets them through",
    "propensity_out_of_range": "--accept=propensity_out_of_range lets them through; they give no importance weights",
    "propensity_mismatch": "weights from wrong propensities are biased; --accept=propensity_mismatch lets them through",
    "undecodable_image": "fetch the dataset again, or leave these episodes out",
    "image_too_large": "--max_image_pixels allows larger images, where features.json does",
    "too_long": "--bypass_partial_episodes leaves them out; a larger --max_sequence_length takes them in",
    "not_representable": "another --to may hold these episodes; this one leaves them out",
    "cast": "--cast=LEAF=DTYPE! writes what it becomes all the same; another dtype may hold it",
    "bad_priority": "--priority=module:function makes of the data what a table can take",
    "duplicate_episode": "--accept=duplicate_episode keeps every copy",
    "missing_shard": "fetch the dataset again",
    "short_shard": "fetch the shard again; the metadata may be of another version",
    "extra_shard": "remove what is left of an earlier write",
    "schema_mismatch": "build the dataset again with one schema",
}
"""What a user can do about a breach of each rule."""
