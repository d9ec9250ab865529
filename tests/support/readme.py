"""The README's blocks as one bash script, each block exactly as printed: python tests/support/readme.py README.md

A line of a shell block may say how its command ends: `rlds-beam validate data  # exit code 3`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_PART = re.compile(r"^#+ (?P<heading>[^\n]+)$|^```(?P<language>\w+)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
_EXIT_CODE = re.compile(r"# exit code (\d+)$")

AGENTS = "TF-Agents and Reverb"
"""The heading of the blocks that need the extra."""


class Block(NamedTuple):
    """A block of code, and the heading that it is under."""

    heading: str
    language: str
    code: str

    @property
    def installs(self) -> bool:
        return "pip install" in self.code


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that are run: those in `sh` and `python`."""
    found, heading = [], ""
    for part in _PART.finditer(page.read_text()):
        heading = part["heading"] or heading
        if part["language"] in ("sh", "python"):
            found.append(Block(heading, part["language"], part["code"]))
    return found


def script(wanted: Iterable[Block]) -> str:
    """A bash script that runs the blocks one after the other, and ends at the first that fails."""
    lines = ["set -euxo pipefail"]
    for block in wanted:
        if block.language == "python":
            lines += ["python - <<'END_OF_BLOCK'", block.code + "END_OF_BLOCK"]
            continue
        for command in block.code.replace("\\\n", " ").splitlines():
            code = _EXIT_CODE.search(command)
            lines += (
                [command] if code is None else ["code=0", "{ " + command, "} || code=$?", f"[ $code -eq {code[1]} ]"]
            )
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(script(blocks(Path(sys.argv[1]))), end="")
