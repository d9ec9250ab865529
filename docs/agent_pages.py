"""The pages for coding agents: `reference/agents.md`, which has all commands, options, and exit codes, and `llms.txt`.

`docs/command_reference.py` writes the first; Sphinx writes the second, a list of all pages, into the site's root
(https://llmstxt.org).
"""

import re
import textwrap
import tomllib
from collections.abc import Iterator
from pathlib import Path

from command_reference import code_lines, format_options, marked, runner_options, sections

from rlds_beam.cli import flags
from rlds_beam.cli.parsers import EXIT_CODES, HELPERS, JOBS, SIGNALS, exit_codes, job_parser

DOCS = Path(__file__).parent
SITE = tomllib.loads((DOCS.parent / "pyproject.toml").read_text())["project"]["urls"]["Documentation"]

HEAD = """\
# For coding agents

Everything that a program needs to run rlds-beam, on one page: commands, options, exit codes, and how to read results.
`docs/command_reference.py` generates it from the program; [llms.txt]({site}llms.txt) lists the other pages.

## How to work

1. `rlds-beam doctor --json`: what is installed. `rlds-beam example data`: a dataset to try things on.
2. `rlds-beam inspect DATA --json`: the format, schema, splits, and sizes; nothing is written.
3. `rlds-beam validate DATA --json`: which episodes break which rule, and the option that repairs each.
4. `rlds-beam convert DATA OUT --to=FORMAT --dry_run`: the plan, or why it is refused. Then without `--dry_run`.

- Decide by the exit code, not by the text. With `--json`, standard output is one JSON document, also for errors; logs
  and progress are on standard error (`--progress=json` prints lines of JSON; `--progress=none` prints nothing).
- A command never asks anything, and writes only to its output. Run a job again after a failure: it resumes.
- Exit code 2: the message says which option or path is wrong. A missing package names the extra to install.
- Exit code 3: the data was read, but episodes were rejected. Choose `--repair=RULE`, `--accept=RULE`, or
  `--max_rejected`; do not drop data without saying so.
- The last argument of `convert` is the output. The format of the input is recognized from its files.
- In Python, each command is a function with the same options: `rlds_beam.convert("data", "out", to="lerobot")`.

## Exit codes

{codes}

## Commands

{commands}

"""

SHARED = 3
"""A group of options that so many commands have is described once."""


def agents_page() -> str:
    """The page: each group of options once."""
    groups: dict[str, list[str]] = {}
    for name in JOBS:
        for section in split_sections(name):
            groups.setdefault(section, []).append(name)
    shared = {section: names for section, names in groups.items() if len(names) >= SHARED}
    lines = [f"- `rlds-beam {name}`: {line}" for name, (_, line) in JOBS.items()]
    lines += [f"- `rlds-beam {name}`: {line}" for name, line in HELPERS.items()]
    parts = [HEAD.format(site=SITE, codes="\n".join(code_lines(EXIT_CODES | SIGNALS)), commands="\n".join(lines))]
    for name in JOBS:
        parts += command(name, [title(section) for section in split_sections(name) if section in shared])
        parts += [section for section in split_sections(name) if section not in shared]
    parts.append("## Options of several commands\n")
    for section, names in shared.items():
        head, _, options = section.partition("\n\n")
        parts.append(f"{head.removeprefix('#')}\n\nOf {', '.join(f'`{name}`' for name in names)}:\n\n{options}")
    parts += [
        "## Options of formats\n",
        *nested(format_options()),
        "## Options of runners\n",
        *nested(runner_options()),
    ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(parts)).replace("](../formats.md)", "](formats.md)").rstrip("\n") + "\n"


def command(name: str, shared: list[str]) -> Iterator[str]:
    """What a command does, how it is called, and its own meaning of exit codes."""
    job = job_parser(name, {})
    yield f"### rlds-beam {name}\n"
    yield f"{marked(' '.join((job.config_class.__doc__ or '').split()))}\n"
    examples = textwrap.dedent(flags.commands(job.module.EXAMPLES))
    yield f"```text\n{' '.join(str(job.parser.usage).split())}\n\n{examples}\n```\n"
    own = {code: text for code, text in exit_codes(name).items() if (EXIT_CODES | SIGNALS).get(code) != text}
    if own:
        yield "\n".join(["Exit codes:\n", *code_lines(own), ""])
    if shared:
        yield f"Also takes, from [Options of several commands](#options-of-several-commands): {'; '.join(shared)}.\n"


def split_sections(name: str) -> list[str]:
    """The groups of a command's options, each as a section of Markdown."""
    lines = [line for line in sections(job_parser(name, {}).parser, "####") if not line.startswith("- `--help`")]
    found = ["#### " + text for text in "\n".join(lines).split("#### ") if text.strip()]
    return [text.replace("#### Arguments", "Arguments:").replace("#### Options\n", "Options:\n") for text in found]


def title(section: str) -> str:
    return section.partition("\n")[0].removeprefix("#### ").rstrip(":")


def nested(lines: Iterator[str]) -> Iterator[str]:
    """Lines whose headings are one level lower."""
    return (f"#{line}" if line.startswith("#") else line for line in lines)


def list_pages() -> str:
    """The file llms.txt."""
    summary = " ".join((DOCS / "index.md").read_text().split("\n\n")[1].split())
    lines = ["# rlds-beam\n", f"> {plain(summary)}\n"]
    lines += [f"The page [For coding agents]({SITE}reference/agents.html) has all commands, options, and exit codes.\n"]
    for folder, heading in (("how_to", "How-to guides"), ("reference", "Reference"), ("tutorials", "Tutorials")):
        lines.append(f"## {heading}\n")
        for path in sorted((DOCS / folder).glob("*.md")):
            if path.stem not in ("index", "changelog"):
                text = re.sub(r"<!--.*-->\n", "", path.read_text()).strip()
                head, first, *_ = (part for part in text.split("\n\n") if not part.startswith(("```{", "- ")))
                about = re.split(r"[.:] ", plain(" ".join(first.split())))[0].rstrip(".:")
                lines.append(f"- [{head.removeprefix('# ').strip()}]({SITE}{folder}/{path.stem}.html): {about}")
        lines.append("")
    return "\n".join(lines)


def plain(text: str) -> str:
    """Markdown without links and marks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("**", "").replace("`", "")
