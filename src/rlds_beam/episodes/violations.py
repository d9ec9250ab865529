"""What is wrong with an episode: which rule it breaks, and where."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Violation:
    """One breach of one rule.

    Attributes:
      rule: its id, such as `last_not_last`; `rlds-beam validate --help` lists all.
      detail: what exactly was found, for a person: `NaN at step 17`.
      field: the step field, where there is one.
      step: index of the first step concerned, where there is one.
    """

    rule: str
    detail: str
    field: str | None = None
    step: int | None = None

    def __str__(self) -> str:
        where = f" in {self.field}" if self.field else ""
        return f"{self.rule}{where}: {self.detail}"


class BadEpisode(Exception):
    """A record could not be read as an episode at all; carries the violations."""

    def __init__(self, *violations: Violation):
        super().__init__("; ".join(map(str, violations)))
        self.violations = violations
