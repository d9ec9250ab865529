"""`rlds-beam doctor`: checks whether this machine can run the jobs, and says what to fix."""

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
    """Check what jobs need on this machine: packages, extras, Reverb, Java, disk space, and system limits."""

    json: bool = option(False, "print JSON instead of text")


def doctor(config: DoctorConfig | None = None) -> list[Finding]:
    """Runs all checks; installs and downloads nothing.

    Returns:
      The finding of each check. Its `status` is `ok`, `absent` (optional), or `problem`.
    """
    from rlds_beam.runners.diagnosis import diagnose

    return list(diagnose())


def main(config: DoctorConfig) -> int:
    """Runs the command: prints the findings; the exit code is 1 if there is a problem."""
    from rlds_beam.text import count

    findings = doctor(config)
    problems = sum(finding.status == "problem" for finding in findings)
    if config.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    else:
        print("\n".join(map(str, findings)))
        print(f"{count(problems, 'problem')} found" if problems else "no problems found")
    return 1 if problems else 0
