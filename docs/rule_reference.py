"""Writes the page of all rules, `reference/rules.md`: breaks each rule, and shows what the commands print.

    python docs/rule_reference.py

`make docs` runs it, and a test compares the page with what it writes.
"""

import contextlib
import io
import os
import re
import shlex
import tempfile
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path

from rule_faults import FAULTS, Fault, prioritized

from rlds_beam import BadEpisode
from rlds_beam.checking.rules import DATASET_RULES, POLICIES, REPORTED, RULE_GROUPS, RULES
from rlds_beam.cli.main import main
from rlds_beam.reverb.priorities import resolve_priority
from rlds_beam.trajectories import FrameOptions, ItemOptions, to_frames
from rlds_beam.trajectories.items import ItemMaker

PAGE = Path(__file__).parent / "reference" / "rules.md"

WIDTH = 84
"""Columns of a block: longer lines are wrapped."""

HEAD = """\
# Rules

Every episode is checked before it is used. This page shows each rule with a dataset that breaks it, what the command
prints, and what repairs or accepts the fault. `rlds-beam help rules` lists the rules in the terminal.

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

The examples below are real output of datasets with four or five episodes of 5 steps. Long lines are wrapped, and the
lines with sizes and times are left out. `docs/rule_reference.py` generates this page.
"""


def page() -> str:
    """The whole page; runs every command."""
    rules = {policy: [rule for rule in RULES if policy in POLICIES[rule]] for policy in ("repair", "accept")}
    parts = [HEAD.format(repair=listed(rules["repair"]), accept=listed(rules["accept"]))]
    for title, names in RULE_GROUPS.items():
        parts.append(f"## {title}\n\n{', '.join(f'[{name}](#{name})' for name in names)}\n")
        parts += [entry(name, FAULTS[name]) for name in names]
    return "\n".join(parts)


def listed(rules: Iterable[str]) -> str:
    """Rules in an item of a list, wrapped."""
    return "\n".join(textwrap.wrap(", ".join(f"`{rule}`" for rule in rules), 116, subsequent_indent="  "))


def marked(text: str) -> str:
    """A text of the terminal as Markdown: names of flags, fields and files are code."""
    return re.sub(r"--\w+|\bis_\w+|\b\w+\.json|\blog_\w+", r"`\g<0>`", text)


def entry(rule: str, fault: Fault) -> str:
    """One rule with its example."""
    meaning = marked(RULES[rule])
    lines = [
        f"### `{rule}`\n",
        f"{meaning[0].upper()}{meaning[1:]}.\n",
        f"**Why it matters:** {fault.why}\n",
        f"**By default:** {default(rule)}\n",
        f"**Example:** {fault.what}.\n",
        *example(rule, fault),
    ]
    if fault.remedy:
        lines.append(f"{'' if can_be_changed(rule) else '**It cannot be repaired.** '}{fault.remedy}\n")
    return "\n".join(lines)


def can_be_changed(rule: str) -> bool:
    return not {"repair", "accept"}.isdisjoint(POLICIES[rule])


def default(rule: str) -> str:
    """What happens to a violation without an option."""
    if rule in DATASET_RULES and rule != "short_shard":
        return "the job refuses the dataset with exit code 2, and does nothing."
    if rule in REPORTED:
        return "the episode is used, and the report names it."
    if rule == "short_shard":
        return "the records that exist are used, and the exit code is 3."
    return "the episode is rejected."


def example(rule: str, fault: Fault) -> Iterator[str]:
    """What the commands print, in a folder with the dataset."""
    before = os.getcwd()
    with tempfile.TemporaryDirectory() as folder:
        try:
            os.chdir(folder)
            fault.make()
            for command in fault.commands:
                yield "```text"
                yield from block(f"$ {command}", priority_error() if rule == "bad_priority" else run(command))
                yield "```\n"
        finally:
            os.chdir(before)


def run(command: str) -> str:
    """What a command prints, errors included, and its exit code if that is not 0."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        code = main([*shlex.split(command)[1:], "--progress=none"])
    return out.getvalue() + (f"# exit code {code}\n" if code else "")


def priority_error() -> str:
    """The check of priorities that `push` runs for each episode; no Reverb server is needed for it."""
    options = FrameOptions(policy_info_fields=("error",))
    for episode in prioritized():
        try:
            resolve_priority("policy_info/error").of(ItemMaker(ItemOptions()).push(to_frames(episode, options)))
        except BadEpisode as error:
            return f"{error}\n"
    raise ValueError("no priority was wrong")


def block(command: str, printed: str) -> Iterator[str]:
    """A command and its output, wrapped; times, sizes and repetitions are left out."""
    yield from fill(command, " \\", "    ")
    for line in printed.splitlines():
        if re.match(r"read  |took  |rlds-beam: failed with|repair  ", line):
            continue
        line = re.sub(r"(written .*\)), [\d.]+ k?B$", r"\1", line)
        yield from fill(line, "", " " * (10 if re.match(r"\S+ {2,}", line) else len(line) - len(line.lstrip()) + 4))


def fill(line: str, end: str, indent: str) -> list[str]:
    lines = textwrap.wrap(
        line,
        WIDTH - len(end),
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
        drop_whitespace=True,
        replace_whitespace=False,
    )
    return [f"{one}{end}" for one in lines[:-1]] + lines[-1:]


if __name__ == "__main__":
    PAGE.write_text(page())
