"""Writes the pages of all commands, `reference/commands.md` and `reference/commands/`; and the parameters of the Flex
Template, `examples/dataflow/metadata.json`.

    python docs/command_reference.py

`make docs` runs it, and a test compares the pages with what it writes.
"""

import argparse
import re
import runpy
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path

from rlds_beam.cli import flags
from rlds_beam.cli.completion import INSTALL
from rlds_beam.cli.parsers import EXIT_CODES, HELPERS, JOBS, SIGNALS, exit_codes, job_parser
from rlds_beam.cli.topics import TOPICS
from rlds_beam.formats.registry import FORMATS, OUTPUTS, SOURCES, output_group, source_group
from rlds_beam.options import Options
from rlds_beam.runners.base import DataflowOptions, FlinkOptions

REFERENCE = Path(__file__).parent / "reference"
TEMPLATE = Path(__file__).parents[1] / "examples" / "dataflow" / "flex_template.py"

GUIDES = {
    "record": "[Record episodes](../../how_to/record.md)",
    "stats": "[Statistics](../../how_to/statistics.md)",
    "validate": "[Rules](../rules.md) and [Gate a dataset](../../how_to/gate.md)",
    "check": "[Find bad episodes](../../how_to/quality.md), [Gate a dataset](../../how_to/gate.md), and "
    "[Signals](../signals.md)",
    "convert": "[The files of a converted dataset](../output_files.md)",
    "index": "[The index](../loading.md#the-index)",
    "push": "[Reverb](../../how_to/reverb.md)",
    "serve": "[Serve](../../how_to/serve.md)",
}
"""The page that says more about a command."""

WRITTEN = "`docs/command_reference.py` generates this page from the program.\n"

HEAD = f"""\
# Commands

{{commands}}

`rlds-beam COMMAND --help` shows the options of a command, and `rlds-beam help TOPIC` explains a topic:
{{topics}}.
{WRITTEN}
## The input

The input is one of these:

- the directory of a dataset: for TFDS, the one with `features.json`, for example `data/point_mass/1.0.0`
- several files of a dataset, also from a pattern that the shell expands: `validate data/*.tfrecord*`
- a directory in a bucket: `gs://...`, `s3://...`, or `az://...` ([Buckets](../how_to/buckets.md))
- a dataset of the Hugging Face Hub: `hf://datasets/USER/NAME` ([The Hub](../how_to/hub.md))

`convert` writes to its last argument, as `cp` does. `--from=FORMAT` reads a format other than RLDS
([Formats](formats.md)). `--split` reads a part, in the notation of TFDS:

```sh
rlds-beam inspect data/point_mass/1.0.0 --items=sequences --sequence_length=8
rlds-beam convert data/point_mass/1.0.0 tenth --split='train[:10%]' --items=episodes
```

## Options

A value follows its flag: `--shards=8`. Most options are also keyword arguments in [Python](python.md).

- [Options of the formats](commands/format_options.md), for `--from` and `--to`
- [Options of Flink and Dataflow](commands/runner_options.md), for `--runner`
- Options of Beam itself follow `--`: `rlds-beam convert data out --runner=flink -- --job_name=mine`

## Exit codes

{{codes}}

The page of each command lists the codes that it can end with. A command that ends with 3 says why in its last line, and
which option accepts that: `--max_rejected`, `--repair`, `--accept` or `--allow_empty`. With `--json` or `-q`, that line
is on standard error. `-v` shows the traceback of an error.

## Completion

`rlds-beam completion SHELL` prints a script for bash, zsh or fish. It completes commands, flags, and the values of
flags: formats, rules and choices.

```text
{{install}}
```

```{{{{toctree}}}}
:hidden:

{{toctree}}
commands/format_options
commands/runner_options
```
"""

FORMAT_HEAD = f"""\
# Options of the formats

These options exist only with their format: `rlds-beam convert INPUT OUTPUT --to=lerobot --fps=10`. In the terminal,
`rlds-beam convert --to=lerobot --help` shows them. [Formats](../formats.md) says what each format is.
{WRITTEN}"""

RUNNER_HEAD = f"""\
# Options of Flink and Dataflow

Each takes effect with its runner only. In the terminal, `rlds-beam help flink` and `rlds-beam help dataflow` show them.
{WRITTEN}"""


def pages() -> dict[Path, str]:
    """Every page by its path."""
    found = {REFERENCE / "commands.md": index()}
    found[TEMPLATE.with_name("metadata.json")] = runpy.run_path(str(TEMPLATE))["metadata"]()
    for name in JOBS:
        found[REFERENCE / "commands" / f"{name}.md"] = command(name)
    found[REFERENCE / "commands" / "format_options.md"] = "\n".join([FORMAT_HEAD, *format_options()])
    found[REFERENCE / "commands" / "runner_options.md"] = "\n".join([RUNNER_HEAD, *runner_options()])
    return found


def index() -> str:
    """The page with the list of commands."""
    lines = [f"- [`rlds-beam {name}`](commands/{name}.md): {line}" for name, (_, line) in JOBS.items()]
    lines += [f"- `rlds-beam {name}`: {line}" for name, line in HELPERS.items()]
    return HEAD.format(
        commands="\n".join(lines),
        topics=", ".join(f"`{topic}`" for topic in TOPICS),
        codes="\n".join(code_lines(EXIT_CODES | SIGNALS)),
        install=textwrap.dedent(flags.commands(INSTALL)),
        toctree="\n".join(f"commands/{name}" for name in JOBS),
    )


def command(name: str) -> str:
    """The page of a command."""
    job = job_parser(name, {})
    about = " ".join((job.config_class.__doc__ or "").split())
    also = [f"See also {GUIDES[name]}.\n"] if name in GUIDES else []
    return "\n".join(
        [
            f"# rlds-beam {name}\n",
            f"{marked(about)}\n",
            f"```text\n{textwrap.fill(str(job.parser.usage), 84, subsequent_indent='    ')}\n```\n",
            f"For example:\n\n```text\n{textwrap.dedent(flags.commands(job.module.EXAMPLES))}\n```\n",
            *also,
            *sections(job.parser),
            *elsewhere(job.config_class),
            "## Exit codes\n",
            *code_lines(exit_codes(name)),
            "",
        ]
    )


def elsewhere(config_class: type[Options]) -> Iterator[str]:
    """Links to the options that are not on the page of a command."""
    names = config_class.__dataclass_fields__
    links = []
    if "from_" in names or "to" in names:
        links.append("- [Options of the formats](format_options.md), for `--from` and `--to`")
    if "runner" in names:
        links.append("- [Options of Flink and Dataflow](runner_options.md), for `--runner`")
    if links:
        yield from ["## More options\n", *links, ""]


def code_lines(codes: Mapping[int, str]) -> list[str]:
    return [f"- **{code}**: {marked(text)}" for code, text in codes.items()]


def format_options() -> Iterator[str]:
    """A section for each format that has options."""
    for name in FORMATS:
        groups = [source_group(name)] if name in SOURCES else []
        groups += [output_group(name)] if name in OUTPUTS else []
        for group in groups:
            if group.options_class is not Options:
                yield f"## `{group.choice}`\n"
                yield from of_class(group.options_class)


def runner_options() -> Iterator[str]:
    for name, options_class in (("flink", FlinkOptions), ("dataflow", DataflowOptions)):
        yield f"## `--runner={name}`\n"
        yield from of_class(options_class)


def of_class(options_class: type[Options]) -> Iterator[str]:
    """The options of a group, in the sections of its classes."""
    parser = flags.new_parser("", "", add_help=False)
    flags.add_config(
        parser, options_class, {"runner": "flink"} | dict([vars(options_class).get("shown_with", ("", ""))])
    )
    yield from sections(parser, "###", (options_class.__doc__ or "").split("\n")[0].rstrip("."))


def sections(parser: argparse.ArgumentParser, level: str = "##", own: str = "Options") -> Iterator[str]:
    """The visible options of a parser under the titles of its groups."""
    for group in parser._action_groups:
        actions = [action for action in group._group_actions if action.help != argparse.SUPPRESS]
        if actions:
            title = str(group.title).removesuffix(" (rlds-beam help rules)")
            title = {"positional arguments": "Arguments", "options": own}.get(title, title)
            yield f"{level} {marked(title)}\n"
            yield from map(option, actions)
            yield ""


def option(action: argparse.Action) -> str:
    """An option as an item of a list."""
    name = action.option_strings[-1] if action.option_strings else str(action.metavar)
    text = marked((action.help or "").replace("%%", "%")).replace("listed below", "[list](../formats.md)")
    metavar = str(action.metavar or "")
    if action.option_strings and action.nargs != 0:
        name += "=..." if metavar.startswith("{") else f"={metavar}"
    if metavar.startswith("{"):
        text += "; one of " + ", ".join(f"`{choice}`" for choice in metavar.strip("{}").split(","))
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
