"""`rlds-beam help TOPIC`: the registry, the rules, the connectors, the exit codes and the runners, in the terminal."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from rlds_beam.checking.rules import ADVICE, RULE_GROUPS, RULES
from rlds_beam.errors import UsageError
from rlds_beam.formats.registry import FORMATS
from rlds_beam.options import Options
from rlds_beam.pipelines import flags
from rlds_beam.pipelines.exit_codes import EXIT_CODES, SIGNALS, exit_codes
from rlds_beam.pipelines.parsers import COMMANDS, JOBS, exit_code_lines, format_rows, job_parser, rule_table
from rlds_beam.text import did_you_mean, joined


def job_of(arguments: Sequence[str]) -> str | None:
    """The job of `rlds-beam help convert`, which is the same as `rlds-beam convert --help`; None for a topic."""
    return arguments[0] if arguments and arguments[0] in JOBS else None


def main(arguments: Sequence[str]) -> int:
    """Prints a topic, or the list of topics and commands.

    Raises:
      UsageError: there is no such topic.
    """
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if (together := "-".join(arguments)) in TOPICS:  # help exit codes
        arguments = [together]
    name = arguments[0]
    if name == "completion":
        from rlds_beam.pipelines import completion

        return completion.main(name, ["--help"])
    if name not in TOPICS:
        hint = did_you_mean(name, [*TOPICS, *COMMANDS])
        raise UsageError(f"there is no command or topic {name!r}{hint} (rlds-beam help lists them)")
    if arguments[1:]:
        raise UsageError(f"unexpected argument {arguments[1]!r}: rlds-beam help {name} takes none")
    print(TOPICS[name][1]())
    return 0


def _overview() -> str:
    topics = flags.table([(name, line) for name, (line, _) in TOPICS.items()])
    return "\n\n".join(
        [
            "usage: rlds-beam help TOPIC\n       rlds-beam help COMMAND [flags]",
            f"topics:\n{topics}",
            f"commands:\n{flags.table(COMMANDS.items())}",
        ]
    )


def _rules() -> str:
    parts = [
        flags.fill(
            "A record that breaks a rule is rejected: it is left out, counted and, if the job has an output, kept in "
            "rejected/. Other policies, with a comma-separated list of rules:"
        ),
        flags.table(
            [
                ("--repair=RULES", "repair the episode; possible for the rules marked repair"),
                ("--accept=RULES", "use the episode as it is; possible for the rules marked accept"),
                ("--fail=RULES", "end the job at the first violation; possible for every rule"),
            ]
        ),
    ]
    for title, rules in RULE_GROUPS.items():
        parts.append(f"{title}:\n{rule_table(rules)}")
    parts.append("What to do about a violation:\n" + flags.table([(rule, ADVICE[rule]) for rule in RULES]))
    return "\n\n".join(parts)


def _signals() -> str:
    from rlds_beam.checking.signals.base import GROUPS
    from rlds_beam.checking.signals.base import SIGNALS as QUALITY

    parts = [
        flags.fill(
            "rlds-beam check measures these signals of each episode, and shows the episodes beyond a threshold. "
            "--threshold=jump=20 sets another one. Conditions choose episodes: --reject='frozen_camera > 0.2, "
            "steps < 5'. Signals marked * compare episodes: convert needs the list of check --write_exclude=FILE."
        )
    ]
    for group in GROUPS:
        rows = [
            (f"{one.name}{'*' * one.relative}", f"{'<' if one.below else '>'} {one.threshold:g}", one.summary)
            for one in QUALITY.values()
            if one.group == group
        ]
        parts.append(f"{group}:\n{flags.table(rows)}")
    return "\n\n".join(parts)


def _formats() -> str:
    details = []
    for name, known in FORMATS.items():
        parts = [f"{known.opens}."] if known.opens else []
        if known.extra:
            parts.append(f"Needs rlds-beam[{known.extra}]{f' for {known.extra_for}' if known.extra_for else ''}.")
        if parts:
            details.append((name, _plain(" ".join(parts))))
    return "\n\n".join(
        [
            flags.fill(
                "--from=FORMAT reads a format, --to=FORMAT writes it. For a format that is not listed, name a class: "
                "module:Class."
            ),
            f"formats:\n{flags.table(format_rows(('from', 'to')))}",
            f"programs that open or write them, and extras to install:\n{flags.table(details)}",
            "Options of a format: rlds-beam convert --to=lerobot --help",
        ]
    )


def _connectors() -> str:
    from rlds_beam.connectors.catalog import SECTIONS, names, summary

    parts = [
        flags.fill(
            "Connectors edit episodes or compute columns for a learner. List them in a YAML file, for "
            "--connectors=FILE:"
        ),
        "  - MinimumLength: {transitions: 10}\n  - ResizeImages: {height: 128, width: 128}",
    ]
    for title, modules in SECTIONS.items():
        lines = [f"{title}:"]
        for name in names(modules):
            lines.append(f"  {name}")
            lines.append(flags.fill(summary(name), " " * 6, " " * 6))
        parts.append("\n".join(lines))
    parts.append("Arguments and pictures of one: help(rlds_beam.connectors.NAME) in Python")
    return "\n\n".join(parts)


def _exit_codes() -> str:
    parts = [exit_code_lines(EXIT_CODES | SIGNALS)]
    for command in JOBS:
        own = exit_codes(command)
        lines = [(str(code), own.get(code, "not used")) for code, text in EXIT_CODES.items() if own.get(code) != text]
        if lines:
            parts.append(f"{command}:\n{flags.table(lines)}")
    return "\n\n".join(parts)


def _flink() -> str:
    from rlds_beam.runners.options import FlinkOptions

    return _runner(
        FlinkOptions,
        "--runner=flink runs a job on a Flink cluster, with the same output and exit codes as on this machine. It "
        "needs Java 11 or later here, and next to each TaskManager a worker pool with the same rlds-beam:",
        "python -m rlds_beam.runners.worker_pool --port=50000\n"
        "rlds-beam convert INPUT OUTPUT --runner=flink --flink_master=HOST:8081",
    )


def _dataflow() -> str:
    from rlds_beam.runners.options import DataflowOptions

    return _runner(
        DataflowOptions,
        "--runner=dataflow runs a job on Google Cloud Dataflow, with the same output and exit codes as on this "
        "machine. It needs rlds-beam[gcp] here, and an image with rlds-beam for the workers:",
        "rlds-beam convert gs://BUCKET/INPUT gs://BUCKET/OUTPUT --runner=dataflow --project=PROJECT "
        "--region=us-central1 --temp_location=gs://BUCKET/tmp --worker_container=IMAGE",
    )


def _runner(options_class: type[Options], about: str, example: str) -> str:
    parser = flags.new_parser("", "", add_help=False, usage="")
    runner = vars(options_class)["shown_with"][1]
    flags.add_config(parser, options_class, {"runner": runner})
    options = {name: job_parser(name, {}).config_class.__dataclass_fields__ for name in JOBS}
    jobs = [name for name in JOBS if "runner" in options[name]]
    dry = [name for name in jobs if "dry_run" in options[name]]
    return "\n\n".join(
        [
            flags.fill(about),
            flags.commands(example),
            parser.format_help().partition("\n\n")[2].strip(),
            flags.fill(
                f"{joined(jobs)} take these options; Beam's own flags go after --. With --dry_run, {joined(dry)} only "
                "check whether the job could run."
            ),
        ]
    )


TOPICS: dict[str, tuple[str, Callable[[], str]]] = {
    "rules": ("what is checked, and what can be done about a violation", _rules),
    "signals": ("numbers that find bad episodes, for check and --reject", _signals),
    "formats": ("what --from reads and --to writes, and which programs open it", _formats),
    "connectors": ("functions that edit episodes or compute columns", _connectors),
    "exit-codes": ("how each command can end", _exit_codes),
    "flink": ("run a job on a Flink cluster", _flink),
    "dataflow": ("run a job on Google Cloud Dataflow", _dataflow),
}
"""Topic -> its line in the list of topics, and what makes its text."""


def _plain(markdown: str) -> str:
    """Markdown without links and code marks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "")
