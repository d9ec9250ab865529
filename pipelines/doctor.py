"""`rlds-beam doctor`: checks whether this machine can run the jobs, and says what to fix."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rlds_beam.options import Options, option
from rlds_beam.terminal.options import print_json

if TYPE_CHECKING:
    from rlds_beam.runners.diagnosis import Diagnosis

__all__ = ["DoctorConfig", "doctor"]

USAGE = ""
EXAMPLES = """
    rlds-beam doctor
    rlds-beam doctor --json
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorConfig(Options):
    """Check what jobs need on this machine: packages, extras, Reverb, Java, disk space, and system limits."""

    json: bool = option(False, "print JSON instead of text")


def doctor(config: DoctorConfig | None = None) -> list[Diagnosis]:
    """Runs all checks; installs and downloads nothing.

    Returns:
      The finding of each check. Its `status` is `ok`, `absent` (optional), or `problem`.
    """
    from rlds_beam.runners.diagnosis import diagnose

    return list(diagnose())


def main(config: DoctorConfig) -> int:
    """Runs the command: prints the findings; the exit code is 1 if there is a problem."""
    from rlds_beam.terminal.tables import apply_style, print_styled
    from rlds_beam.text import count

    findings = doctor(config)
    problems = sum(finding.status == "problem" for finding in findings)
    if config.json:
        print_json({"problems": problems, "findings": [dataclasses.asdict(finding) for finding in findings]})
    else:
        found = f"{count(problems, 'problem')} found" if problems else "no problems found"
        print_styled("\n".join([*_lines(findings), apply_style(found, "red" if problems else "green")]))
    return 1 if problems else 0


def _lines(findings: Sequence[Diagnosis]) -> Iterator[str]:
    """A table of the findings, each with its remedy below it; the status has a color on a terminal."""
    from rlds_beam.terminal.tables import Style, apply_style, table_lines
    from rlds_beam.text import escape_controls

    styles: dict[str, Style] = {"ok": "green", "absent": "dim", "problem": "red"}
    rows = table_lines(
        ("status", "check", "found"), [(finding.status, finding.check, finding.detail) for finding in findings]
    )
    at = rows[0].index("check")
    yield apply_style(rows[0], "dim")
    for row, finding in zip(rows[1:], findings, strict=True):
        yield apply_style(row[:at], styles[finding.status]) + row[at:]
        yield from (" " * at + escape_controls(line) for line in finding.remedy.splitlines())
