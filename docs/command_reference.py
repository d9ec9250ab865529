"""Writes the page of all commands, `reference/commands.md`, and the parameters of the Flex Template,
`examples/dataflow/metadata.json`.

    python docs/command_reference.py

`make docs` runs it, and a test compares the pages with what it writes.
"""

import argparse
import re
import runpy
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlds_beam.cli import arguments
from rlds_beam.cli.functions import JOBS, find_job
from rlds_beam.cli.main import job_parser
from rlds_beam.formats.registry import FORMATS
from rlds_beam.options import Options
from rlds_beam.pipelines.convert import ConvertConfig

REFERENCE = Path(__file__).parent / "reference"
TEMPLATE = Path(__file__).parents[1] / "examples" / "dataflow" / "flex_template.py"

GUIDES = {
    "record": "[Record episodes](../how_to/record.md)",
    "stats": "[Statistics](../how_to/statistics.md)",
    "check": "[Check a dataset](../how_to/check.md) and [Signals](signals.md)",
    "convert": "[The files of a converted dataset](output_files.md)",
    "index": "[The index](loading.md#the-index)",
    "push": "[Reverb](../how_to/reverb.md)",
    "serve": "[Reverb](../how_to/reverb.md)",
}
"""The page that says more about a command."""

WRITTEN = "`docs/command_reference.py` generates this page from the program.\n"

HEAD = f"""\
# Commands

{{commands}}

`rlds-beam COMMAND --help` shows the options of a command. [Formats](formats.md), [rules](rules.md),
[signals](signals.md), and [connectors](connectors.md) have pages of their own.
{WRITTEN}
The input is the directory of a dataset (for TFDS, the one with `features.json`), several files of one, a directory in a
[bucket](../how_to/buckets.md), or a dataset of the [Hub](../how_to/buckets.md#the-hugging-face-hub). `convert` writes
to its last argument, as `cp` does. A value follows its flag: `--shards=8`. Most options are also keyword arguments in
[Python](python.md). Beam's own flags follow `--`: `rlds-beam convert data out --runner=flink -- --job_name=mine`.

For completion in a shell, put `eval "$(register-python-argcomplete rlds-beam)"` into its start-up file.

## Exit codes

- **0**: success
- **1**: the job failed; the same command resumes it
- **2**: wrong usage, or the input or output cannot be used; nothing was written
- **3**: finished, but too much was rejected, there are no items, or versions differ
- **4**: the result is not what was predicted, or the input changed meanwhile
- **130**: interrupted by Ctrl-C, SIGTERM, or SIGHUP (servers then end with 0)
- **141**: the program that reads the output closed it, for example head

A command that ends with 3 says why in its last line, and which option accepts that: `--max_rejected`, `--repair`,
`--accept` or `--allow_empty`. With `--json` or `--progress=none`, that line is on standard error. `-v` shows the
traceback of an error.
"""

SHARED = """\
## Shared options

Every command also has `-h`, and `-v` to show what Beam, TensorFlow, and workers log.
"""

_EVERYWHERE = ("help", "verbose")


def pages() -> dict[Path, str]:
    """Every page by its path."""
    return {
        REFERENCE / "commands.md": page(),
        TEMPLATE.with_name("metadata.json"): runpy.run_path(str(TEMPLATE))["metadata"](),
    }


def page() -> str:
    """The page of all commands: each with its own options, then those that several share, once."""
    groups = {name: dict(of_job(name)) for name in JOBS}
    users: dict[str, list[str]] = {}
    for name, own in groups.items():
        for title in own:
            users.setdefault(title, []).append(name)
    shared = {
        title: names for title, names in users.items() if len(names) > 1 and title not in ("Arguments", "Options")
    }
    lines = [f"- [`rlds-beam {name}`](#rlds-beam-{name}): {line}" for name, line in JOBS.items()]
    parts = [HEAD.format(commands="\n".join(lines))]
    for name, own in groups.items():
        parts += command(name, {title: options for title, options in own.items() if title not in shared})
        common = [title for title in own if title in shared]
        parts += [*([f"- shared: {'; '.join(common)}"] if common else []), ""]
    parts.append(SHARED)
    for title, names in shared.items():
        options = list(dict.fromkeys(option for name in names for option in groups[name][title]))
        parts += [f"### {title}\n", *options, ""]
    parts += ["## Options of the formats\n", *format_options()]
    return "\n".join(parts)


def command(name: str, own: Mapping[str, list[str]]) -> list[str]:
    """The section of a command, with the options that only it has."""
    job, config_class = find_job(name)
    also = f" See {GUIDES[name]}." if name in GUIDES else ""
    return [
        f"## rlds-beam {name}\n",
        f"{marked(' '.join((config_class.__doc__ or '').split()))}{also}\n",
        f"```text\n{textwrap.dedent(job.EXAMPLES).strip()}\n```\n",
        *(option for options in own.values() for option in options),
    ]


def of_job(name: str) -> Iterator[tuple[str, list[str]]]:
    """The sections of a job's options, without those of formats."""
    parser, config_class = job_parser(name), find_job(name)[1]
    arguments.add_options(parser, config_class)
    return sections(parser)


def format_options() -> Iterator[str]:
    """The options of each format that has some."""
    known = ConvertConfig.known_formats()
    for name in FORMATS:
        for choice in (f"--from={name}", f"--to={name}"):
            options_class = known.get(choice, Options)
            if options_class is not Options:
                parser = arguments.Parser(add_help=False)
                arguments.add_options(parser, options_class)
                options = [option for _, options in sections(parser) for option in options]
                yield from [f"### `{choice}`\n", *options, ""]


def sections(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """The titles of a parser's groups, each with its visible options; as the help shows them."""
    for group in parser._action_groups:
        visible = [a for a in group._group_actions if a.dest not in _EVERYWHERE]
        if visible:
            title = {"positional arguments": "Arguments", "options": "Options"}.get(str(group.title), str(group.title))
            yield marked(title), list(map(option, visible))


def option(action: argparse.Action) -> str:
    """An option as an item of a list."""
    name = action.option_strings[-1] if action.option_strings else str(action.metavar)
    text = marked((action.help or "").replace("%%", "%"))
    if action.option_strings and action.nargs != 0:
        name += "=..." if action.choices else f"={action.metavar}"
    if action.choices:
        text += "; one of " + ", ".join(f"`{choice}`" for choice in action.choices)
    also = "".join(f", `{short}`" for short in action.option_strings[:-1])
    return f"- `{name}`{also}: {text}"


def marked(text: str) -> str:
    """A text of the terminal as Markdown: flags and names of files and fields are code."""
    parts = re.split(
        r"(--\w+(?:=[\w.]*\w)?|\b\w+\.json\b|\bis_\w+|\b\w+:\w+(?:[-./]\w+)*\b|(?<= )--(?=[ ;,.]|$))", text
    )
    plain = [re.sub(r"([*<\[])", r"\\\1", part) for part in parts[::2]]
    code = [f"`{part}`" for part in parts[1::2]]
    return "".join(a + b for a, b in zip(plain, [*code, ""], strict=True))


if __name__ == "__main__":
    for path, text in pages().items():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
