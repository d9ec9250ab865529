"""The code blocks of pages as one bash script, each exactly as printed: python tests/support/readme.py README.md ...

A line of a shell block may say how its command ends: `rlds-beam validate data  # exit code 3`. In a tutorial, a `text`
block right after a block shows its output. `...` stands for any lines. The width of columns and the numbers in a `took`
line may differ, and so may a number after `loss` or `return`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

_PART = re.compile(
    r"^#+ (?P<heading>[^\n]+)$"
    r"|^```(?P<language>sh|python)\n(?P<code>.*?)^```$(?:\n\n```text\n(?P<output>.*?)^```$)?"
    r"|^```.*?^```$",
    re.DOTALL | re.MULTILINE,
)
_NUMBER = r"[\d,]+(?:\\\.\d+)?"
_EXIT_CODE = re.compile(r"# exit code (\d+)$")

AGENTS = "TF-Agents and Reverb"
"""The heading of the blocks that need the extra."""

MARK = "@@ end of block"
"""What a script with `marks` prints after each block."""


class Block(NamedTuple):
    """A block of code, the heading that it is under, and the output that the page shows below it."""

    heading: str
    language: str
    code: str
    output: str = ""

    @property
    def installs(self) -> bool:
        return "pip install" in self.code


def blocks(page: Path) -> list[Block]:
    """The blocks of a page that run: `sh` and `python`."""
    found, heading = [], ""
    for part in _PART.finditer(page.read_text()):
        heading = part["heading"] or heading
        if part["language"]:
            found.append(Block(heading, part["language"], part["code"], part["output"] or ""))
    return found


def script(wanted: Iterable[Block], marks: bool = False) -> str:
    """A bash script that runs the blocks in order, and ends at the first one that fails."""
    lines = ["set -euxo pipefail"]
    for block in wanted:
        if block.language == "python":
            lines += ["python - <<'END_OF_BLOCK'", block.code + "END_OF_BLOCK"]
        else:
            for command in block.code.replace("\\\n", " ").splitlines():
                code = _EXIT_CODE.search(command)
                lines += (
                    [command]
                    if code is None
                    else ["code=0", "{ " + command, "} || code=$?", f"[ $code -eq {code[1]} ]"]
                )
        lines += [f"echo '{MARK}'"] * marks
    return "\n".join([*lines, ""])


def matches(output: str, printed: str) -> bool:
    """Whether a page's output block fits what the block printed."""
    lines = [_pattern(line) for line in output.splitlines()]
    return re.fullmatch("".join(lines), printed) is not None


def _pattern(line: str) -> str:
    if line == "...":
        return r"(?:.*\n)*?"
    pattern = re.escape(line) + r"\n"
    varying = _NUMBER if line.startswith("took") else rf"(?:(?<=loss)|(?<=return))(?:\\ |:){_NUMBER}"
    return re.sub(r"(?:\\ )+", r"\\s+", re.sub(varying, r"[ :]*[\\d,.]+", pattern))


if __name__ == "__main__":
    print(script(block for page in sys.argv[1:] for block in blocks(Path(page))), end="")
