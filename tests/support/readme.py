"""Turns the code blocks of pages into one bash script: python tests/support/readme.py README.md ...

Blocks run exactly as printed. A shell line may state its exit code: `rlds-beam check --rules data  # exit code 3`. In a
tutorial, a `text` block right after a block shows its output: `...` stands for any lines. Column widths, the numbers in
a `took` line, and a number after `loss` or `return` may differ.
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
"""The line that a script with `marks` prints after each block."""


class Block(NamedTuple):
    """A code block, the heading above it, and the output shown below it."""

    heading: str
    language: str
    code: str
    output: str = ""

    @property
    def installs(self) -> bool:
        return "pip install" in self.code


def blocks(page: Path) -> list[Block]:
    """Returns the blocks of a page that run: `sh` and `python`."""
    found, heading = [], ""
    for part in _PART.finditer(page.read_text()):
        heading = part["heading"] or heading
        if part["language"]:
            found.append(Block(heading, part["language"], part["code"], part["output"] or ""))
    return found


def script(wanted: Iterable[Block], marks: bool = False) -> str:
    """Returns a bash script that runs the blocks in order and stops at the first failure."""
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
    """Whether the output block of a page matches the printed output."""
    lines = [_pattern(line) for line in output.splitlines()]
    return re.fullmatch("".join(lines), printed) is not None


def _pattern(line: str) -> str:
    if line == "...":
        return r"(?:.*\n)*?"
    cut = line.endswith(" ...")  # the rest of a long line
    pattern = re.escape(line.removesuffix("...")) + (r".*\n" if cut else r"\n")
    varying = _NUMBER if line.startswith("took") else rf"(?:(?<=loss)|(?<=return))(?:\\ |:){_NUMBER}"
    return re.sub(r"(?:\\ )+", r"\\s+", re.sub(varying, r"[ :]*[\\d,.]+", pattern))


if __name__ == "__main__":
    print("checkout=$PWD")
    for page in sys.argv[1:]:  # each begins in the checkout, as its reader does
        print(f'cd "$checkout"\n{script(blocks(Path(page)))}', end="")
