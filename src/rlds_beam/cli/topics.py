"""`rlds-beam help TOPIC`: formats, rules, signals, connectors, exit codes, and runners, in the terminal."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from rlds_beam import plugins
from rlds_beam.checking.rules import ADVICE, POLICIES, RULE_GROUPS, RULES
from rlds_beam.cli import flags
from rlds_beam.cli.parsers import (
    EXIT_CODES,
    JOBS,
    SIGNALS,
    commands,
    exit_code_lines,
    exit_codes,
    format_rows,
    job_parser,
)
from rlds_beam.connectors.catalog import connector_names
from rlds_beam.errors import UsageError
from rlds_beam.formats.registry import formats, output_group, source_group
from rlds_beam.options import Group, Options
from rlds_beam.text import did_you_mean, join_texts

if TYPE_CHECKING:
    from rlds_beam.checking.signals.base import Signal


def find_job(arguments: Sequence[str]) -> str | None:
    """The job of `rlds-beam help convert`, which is the same as `rlds-beam convert --help`; None for a topic."""
    name = arguments[0] if arguments else ""
    return name if name in JOBS or (name not in TOPICS and name in plugins.names("commands")) else None


def main(arguments: Sequence[str]) -> int:
    """Prints a topic, or the list of topics and commands. Raises UsageError if there is no such topic."""
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_overview())
        return 0
    if (together := "-".join(arguments)) in TOPICS:  # help exit codes
        arguments = [together]
    name = arguments[0]
    if name not in TOPICS:
        topics = [topic for topic in SEARCHABLE if name in list_names(topic)]
        if not topics:
            known = [*TOPICS, *commands(), *(name for topic in SEARCHABLE for name in list_names(topic))]
            raise UsageError(
                f"there is no command or topic {name!r}{did_you_mean(name, known)} (rlds-beam help lists them)"
            )
        print("\n\n".join(TOPICS[topic][1](name) for topic in topics))
        return 0
    if arguments[1:] and name not in SEARCHABLE:
        raise UsageError(f"unexpected argument {arguments[1]!r}: rlds-beam help {name} takes none")
    print(TOPICS[name][1](" ".join(arguments[1:])))
    return 0


def _overview() -> str:
    topics = flags.table([(name, line) for name, (line, _) in TOPICS.items()])
    return "\n\n".join(
        [
            "usage: rlds-beam help TOPIC [NAME]\n       rlds-beam help COMMAND [flags]\n"
            "       rlds-beam help NAME (of a format, rule, signal, or connector)",
            f"topics:\n{topics}",
            f"commands:\n{flags.table(commands().items())}",
        ]
    )


def _rules(word: str) -> str:
    if word:
        return "\n\n".join(map(_rule, _find(word, RULE_GROUPS, "rules")))
    groups = [(title, ", ".join(rules)) for title, rules in RULE_GROUPS.items()]
    policies = [
        ("--repair=RULES", "repair the episode; possible for the rules marked repair"),
        ("--accept=RULES", "use the episode as it is; possible for the rules marked accept"),
        ("--fail=RULES", "end the job at the first violation; possible for every rule"),
    ]
    return "\n\n".join(
        [
            flags.fill(
                "A record that breaks a rule is rejected: it is left out, counted and, if the job has an output, kept "
                "in rejected/. Other policies, with a comma-separated list of rules:"
            ),
            flags.table(policies),
            f"rules:\n{flags.table(groups)}",
            *(f"{policy}: {_policy_rules(policy)}" for policy in ("repair", "accept")),
            "One of them, or one group:\n" + flags.commands("rlds-beam help rules missing_is_last"),
        ]
    )


def _policy_rules(policy: str) -> str:
    rules = ", ".join(rule for rule in RULES if policy in POLICIES[rule])
    return flags.fill(rules, " " * (len(policy) + 2), " " * 8).lstrip()


def _rule(rule: str) -> str:
    policies = [f"--{policy}={rule}" for policy in POLICIES[rule] if policy != "reject"]
    rows = [("meaning", RULES[rule]), ("possible", ", ".join(policies)), ("advice", ADVICE[rule])]
    return f"{rule}\n{flags.table(rows)}"


def _signals(word: str) -> str:
    from rlds_beam.checking.signals.base import GROUPS
    from rlds_beam.checking.signals.base import SIGNALS as QUALITY

    groups = {group: [signal.name for signal in QUALITY.values() if signal.group == group] for group in GROUPS}
    if word:
        return "\n\n".join(_signal(QUALITY[name]) for name in _find(word, groups, "signals"))
    marked = {name: f"{name}{'*' * QUALITY[name].relative}" for name in QUALITY}
    rows = [(group, ", ".join(marked[name] for name in names)) for group, names in groups.items()]
    return "\n\n".join(
        [
            flags.fill(
                "rlds-beam check measures these signals of each episode, and shows the episodes beyond a threshold. "
                "--threshold=jump=6 sets another one. Conditions choose episodes: --reject='frozen_camera > 0.2, "
                "steps < 5'. Signals marked * compare episodes: convert needs the list of check --write_exclude=FILE."
            ),
            flags.table(rows),
            "One of them, or one group:\n" + flags.commands("rlds-beam help signals frozen_camera"),
        ]
    )


def _signal(signal: Signal) -> str:
    rows = [
        ("meaning", signal.summary),
        ("unit", signal.unit),
        ("threshold", f"{signal.threshold:g}"),
        ("advice", signal.remedy),
    ]
    if signal.misses:
        rows.insert(3, ("cannot find", signal.misses))
    if signal.relative:
        rows.append(("compared", "with the whole dataset, so --reject cannot use it"))
    return f"{signal.name}\n{flags.table(rows)}"


def list_names(topic: str) -> list[str]:
    """The names that may follow a topic."""
    if topic == "signals":
        from rlds_beam.checking.signals.base import SIGNALS as QUALITY

        return list(QUALITY)
    if topic == "connectors":
        return connector_names()
    return list({"rules": [*RULES], "formats": [*formats()]}.get(topic, ()))


def _find(word: str, groups: Mapping[str, Sequence[str]], topic: str) -> list[str]:
    """The name that a word is, or the names of the groups whose titles contain it.

    Raises:
      UsageError: there are none.
    """
    names = [name for group in groups.values() for name in group]
    found = [word] if word in names else [n for t, group in groups.items() if word.lower() in t.lower() for n in group]
    if not found:
        hint = did_you_mean(word, [*names, *groups])
        raise UsageError(f"help {topic}: there is nothing named {word!r}{hint} (rlds-beam help {topic} lists them)")
    return found


def _formats(word: str) -> str:
    if word:
        return "\n\n".join(map(_format, _find(word, {"formats": list(formats())}, "formats")))
    return "\n\n".join(
        [
            flags.fill(
                "--from=FORMAT reads a format, --to=FORMAT writes it. For a format that is not listed, name a class: "
                "module:Class."
            ),
            f"formats:\n{flags.table(format_rows(('from', 'to')))}",
            "One of them, with its options, and with what opens it:\n" + flags.commands("rlds-beam help lerobot"),
        ]
    )


def _format(name: str) -> str:
    """The help on a format: its names, its recognition, and its options."""
    known = formats()[name]
    recognized = f"recognized by {known.known_by}" if known.known_by else "only if --from names it"
    needs = f"the extra {known.extra}{f' for {known.extra_for}' if known.extra_for else ''}" if known.extra else ""
    rows = [
        ("format", known.about),
        ("read", known.source and f"--from={name}; {recognized}"),
        ("write", known.output and f"--to={name}"),
        ("opens in", known.opens),
        ("needs", needs),
    ]
    groups = ((source_group, known.source), (output_group, known.output))
    options = [_options(group(name)) for group, there in groups if there]
    return "\n\n".join(
        [f"{name}\n{flags.table([(row, _plain(text)) for row, text in rows if text])}", *filter(None, options)]
    )


def _options(group: Group) -> str:
    """The options of a format as a section of a help text; empty if it has none."""
    parser = flags.new_parser("", "", add_help=False, usage="")
    flags.add_config(parser, group.options_class, {})
    text = parser.format_help().partition("options:\n")[2].rstrip()
    return text and f"options of {group.choice}:\n{text}"


def _connectors(word: str) -> str:
    from rlds_beam.connectors.catalog import SECTIONS, connector_class, names, summary

    groups = {title: names(modules) for title, modules in SECTIONS.items()}
    groups |= {"Of other packages": others} if (others := plugins.names("connectors")) else {}
    if word:
        found = _find(word, groups, "connectors")
        if found != [word]:
            return "\n".join(f"{name}\n{flags.fill(summary(name), '    ', '    ')}" for name in found)
        arguments = re.sub(r": '([^']*)'", r": \1", str(inspect.signature(connector_class(word)))).removesuffix(
            " -> None"
        )
        return f"{flags.fill(f'{word}{arguments}', '', '    ')}\n\n{_narrow(connector_class(word))}"
    return "\n\n".join(
        [
            flags.fill("Connectors edit episodes or compute columns for a learner. List them, or name a YAML file:"),
            '  --connectors="MinimumLength(10),ResizeImages(height=128, width=128)"\n  --connectors=FILE',
            "  - MinimumLength: {transitions: 10}\n  - ResizeImages: {height: 128, width: 128}",
            "\n".join(f"{title}:\n{flags.fill(', '.join(group), '  ', '  ')}" for title, group in groups.items()),
            "One of them, or one group:\n" + flags.commands("rlds-beam help connectors ResizeImages"),
        ]
    )


def _narrow(connector: type) -> str:
    """The docstring of a connector; paragraphs of plain text are wrapped again, drawings and lists stay."""
    paragraphs = (inspect.getdoc(connector) or "").split("\n\n")
    plain = [not re.search(r"^ |\S {2,}\S", text, re.MULTILINE) for text in paragraphs]
    return "\n\n".join(
        flags.fill(" ".join(text.split())) if wrap else _cut(text) for text, wrap in zip(paragraphs, plain, strict=True)
    )


def _cut(text: str) -> str:
    """Lines of at most `flags.WIDTH` columns; the rest of a longer one follows it, indented."""
    return "\n".join(
        part
        for line in text.splitlines()
        for part in (flags.fill(line, "", " " * 8).splitlines() if len(line) > flags.WIDTH else [line])
    )


def _exit_codes(word: str) -> str:
    del word
    parts = [exit_code_lines(EXIT_CODES | SIGNALS)]
    for command in JOBS:
        own = exit_codes(command)
        lines = [(str(code), own.get(code, "not used")) for code, text in EXIT_CODES.items() if own.get(code) != text]
        if lines:
            parts.append(f"{command}:\n{flags.table(lines)}")
    return "\n\n".join(parts)


def _flink(word: str) -> str:
    del word
    from rlds_beam.runners.base import FlinkOptions

    return _runner(
        FlinkOptions,
        "--runner=flink runs a job on a Flink cluster, with the same output and exit codes as on this machine. It "
        "needs Java 11 or later here, and next to each TaskManager a worker pool with the same rlds-beam:",
        "python -m rlds_beam.runners.worker_pool --port=50000\n"
        "rlds-beam convert INPUT OUTPUT --runner=flink --flink_master=HOST:8081",
    )


def _dataflow(word: str) -> str:
    del word
    from rlds_beam.runners.base import DataflowOptions

    return _runner(
        DataflowOptions,
        "--runner=dataflow runs a job on Google Cloud Dataflow, with the same output and exit codes as on this "
        "machine. It needs the extra gcp here, and an image with rlds-beam for the workers:",
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
                f"{join_texts(jobs)} take these options; Beam's own flags go after --. "
                f"With --dry_run, {join_texts(dry)} only check whether the job could run."
            ),
        ]
    )


TOPICS: dict[str, tuple[str, Callable[[str], str]]] = {
    "rules": ("what is checked, and what can be done about a violation", _rules),
    "signals": ("numbers that find bad episodes, for check and --reject", _signals),
    "formats": ("what --from reads and --to writes", _formats),
    "connectors": ("functions that edit episodes or compute columns", _connectors),
    "exit-codes": ("how each command can end", _exit_codes),
    "flink": ("run a job on a Flink cluster", _flink),
    "dataflow": ("run a job on Google Cloud Dataflow", _dataflow),
}
"""Topic -> its line in the list of topics, and what makes its text, given the words that follow the topic."""

SEARCHABLE = ("formats", "rules", "signals", "connectors")
"""The topics that take a name, or a part of a group's title."""


def _plain(markdown: str) -> str:
    """Markdown without links and code marks."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", markdown).replace("`", "")
