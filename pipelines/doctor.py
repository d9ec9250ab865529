"""`rlds-beam doctor`: what this machine has of what the jobs need, and what to do about the rest."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from rlds_beam.options import Options, option

if TYPE_CHECKING:
    from rlds_beam.runners.diagnosis import Finding

__all__ = ["DoctorConfig", "doctor"]

USAGE = ""
EXAMPLES = """
    rlds-beam doctor
    rlds-beam doctor --json
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DoctorConfig(Options):
    """Looks for what keeps jobs from running: packages, extras, Reverb, Java, disk space, limits of the system."""

    json: bool = option(False, "print JSON instead of text")


def doctor(config: DoctorConfig | None = None) -> list[Finding]:
    """Runs all checks; installs and fetches nothing.

    Returns:
      What each check found. Its `status` is `ok`, `absent` (something optional) or `problem`.
    """
    from rlds_beam.runners.diagnosis import diagnose

    return list(diagnose())


def main(config: DoctorConfig) -> int:
    """The command: prints the findings; the exit code is 1 if one of them is a problem."""
    from rlds_beam.text import count

    findings = doctor(config)
    problems = sum(finding.status == "problem" for finding in findings)
    if config.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        print("\n".join(map(str, findings)))
        print(f"{count(problems, 'problem')} found" if problems else "no problems found")
    return 1 if problems else 0
