"""Writes the page of all rules, `reference/rules.md`, from `RULES`.

    python docs/rule_reference.py

`make docs` runs it, and a test compares the page with what it writes.
"""

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

from rlds_beam.checking.rules import ADVICE, DATASET_RULES, POLICIES, REPORTED, RULE_GROUPS, RULES

PAGE = Path(__file__).parent / "reference" / "rules.md"

HEAD = """\
# Rules

Every episode is checked before it is used: by `rlds-beam check`, and by every command that reads episodes.
`docs/rule_reference.py` generates this page.

## What happens to a fault

A record that breaks a rule is **rejected**: it is left out, counted, and named in the report. `convert` keeps its
original bytes in `rejected/`. If more records are rejected than `--max_rejected` allows (by default none), the exit
code is 3, but the rest is still written. Other policies, each with a comma-separated list of rules:

- `--repair=RULES` repairs the episode. Possible for:
  {repair}
- `--accept=RULES` uses the episode as it is. Possible for:
  {accept}
- `--fail=RULES` ends the job at the first violation. Possible for every rule.

If a rule is in several lists, `--fail` wins over `--repair`, and `--repair` over `--accept`.

The void action, reward, and discount of the last step, fields that the output leaves out, and
[images that `stats` does not read](statistics.md#what-is-read) are checked only with `--check_unused`.
"""

WHY = {
    "corrupt_record": "Damaged bytes can decode to plausible numbers. Nothing else in the pipeline would notice.",
    "not_an_example": "The record has a valid checksum, but something else wrote it: no step can be read from it.",
    "missing_field": (
        "A learner expects every field in every step. Filling in zeros would teach it values nobody recorded."
    ),
    "unequal_lengths": "If one field is a step shorter, it is unknown which of its values belong to which step.",
    "wrong_dtype_or_shape": (
        "Read with the wrong shape, the values of one step end up in the next. The rule also covers values "
        "that do not fit their dtype: no source casts 300 to uint8, or NaN to a flag."
    ),
    "empty_episode": "There is nothing to learn from it, and code that takes the first step of each episode fails.",
    "missing_is_first": (
        "Without `is_first`, TF-Agents and sequence models continue the previous episode: state, windows and "
        "returns run across the boundary."
    ),
    "unexpected_is_first": (
        "A new episode starts, but the previous one has not ended. A window across both would pair unrelated steps."
    ),
    "missing_is_last": (
        "Without `is_last`, a learner bootstraps from the next step in the file: the first one of another episode."
    ),
    "unexpected_is_last": (
        "Steps after the last step belong to another episode. A window across it would pair unrelated steps."
    ),
    "terminal_not_last": (
        "A terminal state has no future: its value is 0. If the episode continues after it, one of the two is wrong."
    ),
    "non_finite": "One NaN in a batch makes the loss NaN, and then every weight.",
    "discount_out_of_range": "A discount above 1 makes returns grow with every step; a negative one flips their sign.",
    "propensity_out_of_range": (
        "Importance weights divide by the propensity. A propensity of 0 gives an infinite weight."
    ),
    "propensity_mismatch": "Off-policy estimates with wrong propensities are biased, and look fine.",
    "rate_mismatch": "A policy that is trained at one rate and run at another moves at another speed.",
    "undecodable_image": "A training job that decodes images later would fail at this one, perhaps after hours.",
    "image_too_large": "A few bytes can decode to gigabytes of pixels.",
    "image_size_mismatch": "A batch, and LeRobot's formats, need images of one size.",
    "duplicate_episode": (
        "A copy counts twice in every mean and every gradient, and can be in the training and the test split at once."
    ),
    "signal_limit": (
        "An episode can keep every rule and still be useless: the robot rests, or a camera is frozen. "
        "`--reject` turns a [signal](signals.md) into a rule."
    ),
    "too_long": (
        "Reverb and padded batches have a maximum length. Cutting an episode would hide its end from the learner."
    ),
    "not_representable": (
        "Some formats cannot hold every episode. Changing its values so that it fits would be silent damage."
    ),
    "cast": "A cast that changes values, for example 300 to int8, gives the learner numbers nobody recorded.",
    "bad_priority": (
        "A prioritized Reverb table samples items in proportion to their priorities: NaN or a negative one breaks it."
    ),
    "missing_shard": "Training on part of a dataset works, and nothing in the result shows that the rest was missing.",
    "short_shard": (
        "A file that was cut exactly between two records looks complete. Only the counts show what is missing."
    ),
    "extra_shard": "A file of an earlier, larger version of the dataset would bring its old episodes back.",
    "schema_mismatch": (
        "If `features.json` describes other data than the records hold, every episode would be read wrongly."
    ),
}
"""Rule -> what would go wrong in training without it."""


def page() -> str:
    """The whole page."""
    rules = {policy: [rule for rule in RULES if policy in POLICIES[rule]] for policy in ("repair", "accept")}
    parts = [HEAD.format(repair=listed(rules["repair"]), accept=listed(rules["accept"]))]
    for title, names in RULE_GROUPS.items():
        parts.append("\n".join([f"## {title}\n", "| rule | remedy |", "| --- | --- |", *map(row, names), ""]))
    return "\n".join(parts)


def listed(rules: Iterable[str]) -> str:
    """Rules in an item of a list, wrapped."""
    return "\n".join(textwrap.wrap(", ".join(f"`{rule}`" for rule in rules), 116, subsequent_indent="  "))


def row(rule: str) -> str:
    """One rule: its meaning, why it matters, what happens instead of a rejection, and the remedy."""
    text = f"`{rule}`: {marked(RULES[rule])}. {WHY[rule]} {default(rule)}".strip().replace("|", "\\|")
    return f"| {text} | {marked(ADVICE[rule])} |"


def marked(text: str) -> str:
    """A text of the terminal as Markdown: names of flags, fields and files are code."""
    return re.sub(r"--\w+(=('[^']*'|[\w,:=!]+))?|\bis_\w+|\b\w+\.json|\blog_\w+", r"`\g<0>`", text)


def default(rule: str) -> str:
    """What happens to a violation without an option, if the episode is not rejected."""
    if rule in DATASET_RULES and rule != "short_shard":
        return "The job refuses the dataset with exit code 2, and does nothing."
    if rule in REPORTED:
        return "The episode is used, and the report names it."
    if rule == "short_shard":
        return "The records that exist are used, and the exit code is 3."
    return ""


if __name__ == "__main__":
    PAGE.write_text(page())
