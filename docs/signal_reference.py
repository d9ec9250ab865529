"""Writes the page of all quality signals, `reference/signals.md`, from `SIGNALS`.

    python docs/signal_reference.py

`make docs` runs it, and a test compares the page with what it writes.
"""

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rlds_beam.checking.signals import DATASET_CHECKS, GROUPS, SIGNALS, Signal

PAGE = Path(__file__).parent / "reference" / "signals.md"
RECALL: dict[str, Any] = json.loads((Path(__file__).parent / "signal_recall.json").read_text())
"""The recall and false alarms of each signal, which `python benchmarks/run.py defects` measured."""

HEAD = """\
# Signals

`rlds-beam check` measures these signals of every episode ([Find bad episodes](../how_to/check.md)). A signal is a
number; it rejects nothing by itself. An episode whose value is beyond the threshold is worth a look. Set another
threshold with `--threshold=jump=6`.
`docs/signal_reference.py` writes this page.

- **Episodes are measured as read**, before repairs and connectors. Rejected records are measured too, if they
  can be read.
- **Compared** signals compare an episode with the rest of the dataset, so they are known only after all episodes have
  been read: `check --reject` may use them, `--reject` of the other commands may not.
- **Decoded** signals look at `--decode=N` images of each camera and episode, evenly spaced. All others decode nothing.
- A signal that needs a field which the dataset does not have, for example timestamps, has no value.
- To leave out such episodes, look at them first (`check --signal=NAME`), then write a list:
  `check --reject='NAME > LIMIT' --write_exclude=FILE`, and `convert --exclude=FILE`.

"""

TAIL = """\
## What they find

`python benchmarks/run.py defects` measured this on DATE with SEEDS seeds, at the default thresholds: 5 of 50 episodes
have a defect, in up to three strengths. **Found** is the share of these episodes that are beyond the threshold, for
each strength; **false alarms** are the share of the episodes without it. The data are the simulated arm of
`example --robot` with two cameras (robot), a walk in 8x8 cells (grid), and smooth states as in MuJoCo (walker). Real
data vary more. In 25 episodes of BridgeData, only `black_images` is beyond its threshold: cameras were off.

RECALL

## The dataset as a whole

`check` and `report` also look at all episodes together, from 10 episodes on:

CHECKS

## Conditions

`--reject` takes conditions `NAME OPERATOR NUMBER`, separated by commas; an episode that meets one of them is chosen.

| condition | meaning |
|---|---|
| `frozen_camera > 0.2` | a signal: the worst of its fields |
| `jump/action >= 8` | a signal of one field |
| `steps < 10`, `return < 0` | the length, the sum of rewards |
| `metadata/success == false` | a number or flag of the episode |

- `check --reject=CONDITIONS --write_exclude=FILE` lists them in a file, for `--exclude=FILE` of other commands.
- `convert`, `push`, `check`, and `stats` reject them, with the rule [`signal_limit`](rules.md).

## The table

`check --output=signals.parquet` writes a row for each record read, sorted by key. Any tool that reads Parquet opens it.

| column | content |
|---|---|
| `key` | the episode's key: `toy/1.0.0:train:00000@12345` |
| `split`, `shard`, `position`, `part` | the parts of the key |
| `steps`, `return`, `instruction` | the number of steps, the sum of rewards, the first instruction |
| `metadata/…` | the numbers and texts of the episode fields |
| `rule`, `detail` | why the record was rejected; null if it was accepted |
| `jump` | a signal: the worst of its fields; null if it cannot be measured |
| `jump@field` | the field with the worst value; of signals that count episodes, the key of the first of them |
| `jump@step`, `jump@stop` | its steps, from `step` to before `stop`; null if it is about the whole episode |
| `jump/action` | the signal of one field |
"""


def page() -> str:
    """The whole page."""
    checks = table(["check", "what it finds"], ([f"`{name}`", text] for name, text in DATASET_CHECKS.items()))
    cells = ("signal", "defect", "data", "strength", "found", "false alarms")
    rows = ([f"`{row['signal']}`", *(row[name] for name in cells[1:])] for row in RECALL["rows"] if row["found"])
    facts = {"DATE": RECALL["date"], "SEEDS": str(RECALL["seeds"]), "RECALL": table(cells, rows), "CHECKS": checks}
    tail = TAIL
    for name, text in facts.items():
        tail = tail.replace(name, text)
    return HEAD + "\n".join(map(section, GROUPS)) + "\n" + tail


def section(group: str) -> str:
    """The signals of a group."""
    own = [signal for signal in SIGNALS.values() if signal.group == group]
    rows = ([entry(signal), signal.unit.replace("|", "\\|"), f"{signal.threshold:g}"] for signal in own)
    return f"## {group}\n\n{table(['signal', 'unit', 'threshold'], rows)}\n"


def entry(signal: Signal) -> str:
    """One signal: its meaning, what it cannot find, and the remedy."""
    kinds = [kind for kind, holds in (("compared", signal.relative), ("decoded", signal.decodes)) if holds]
    kind = f" ({', '.join(kinds)})" if kinds else ""
    remedy = signal.remedy.partition("leave them out: ")[0].removesuffix("; or ")
    misses = f" Misses: {marked(signal.misses)}." if signal.misses else ""
    text = f"`{signal.name}`: {marked(signal.summary)}{kind}.{misses}"
    return f"{text} {capital(marked(remedy))}." if remedy else text


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |".replace("|  |", "| |").replace("|---|", "| --- |") for cells in lines)


def capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def marked(text: str) -> str:
    """A text of the terminal as Markdown: names of flags and connectors outside of code are code."""
    parts = text.split("`")
    parts[::2] = [re.sub(r"--\w+|\b[A-Z][a-z]+[A-Z]\w+", r"`\g<0>`", part) for part in parts[::2]]
    return "`".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
