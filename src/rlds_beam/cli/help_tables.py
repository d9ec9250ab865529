"""`rlds-beam help`: the tables of rules, signals, formats, and connectors, and the docstring of a connector."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence

from rlds_beam import plugins
from rlds_beam.checking.rules import RULES
from rlds_beam.cli import flags
from rlds_beam.cli.parsers import broken_lines, commands, format_rows, rule_table
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean


def main(arguments: Sequence[str]) -> int:
    """Prints a table, or the list of tables and commands. Raises UsageError if there is no such table or connector."""
    topic, *names = arguments or ["--help"]
    if topic in ("-h", "--help", "help"):
        print(f"usage: rlds-beam help {{{','.join(TABLES)}}}\n\ncommands:\n{flags.table(commands().items())}")
    elif topic == "connectors" and len(names) == 1:
        print(_describe_connector(names[0]))
    elif topic in TABLES and not names:
        print(TABLES[topic]())
    else:
        hint = did_you_mean(topic, [*TABLES, *commands()])
        raise UsageError(f"there is no help on {' '.join(arguments)!r}{hint} (rlds-beam help lists all)")
    return 0


def _list_rules() -> str:
    about = "A record that breaks a rule is rejected, unless --repair, --accept, or --fail names the rule."
    return f"{flags.fill(about)}\n\n{rule_table(RULES)}"


def _list_signals() -> str:
    from rlds_beam.checking.signals.base import SIGNALS

    about = (
        "rlds-beam check measures these. --threshold=jump=6 sets a threshold, --reject='jump > 6' leaves episodes out."
    )
    rows = [(signal.name, f"{signal.threshold:g} {signal.unit}".strip(), signal.summary) for signal in SIGNALS.values()]
    return f"{flags.fill(about)}\n\n{flags.table(rows)}"


def _list_formats() -> str:
    about = "--from=FORMAT reads a format, --to=FORMAT writes it. Any other: --from=module:Class, --to=module:Class."
    table = flags.table(format_rows(("from", "to")))
    return "\n\n".join([flags.fill(about), table, *broken_lines("formats")])


def _list_connectors() -> str:
    from rlds_beam.connectors import CONNECTORS
    from rlds_beam.connectors.catalog import SECTIONS, names, summary

    groups = {title: [(name, summary(name)) for name in names(modules)] for title, modules in SECTIONS.items()}
    others = [name for name in plugins.names("connectors") if name not in CONNECTORS]
    groups["Of other packages"] = [(name, ", ".join(plugins.packages("connectors", name))) for name in others]
    tables = [f"{title}:\n{flags.table(rows)}" for title, rows in groups.items() if rows]
    about = "rlds-beam help connectors NAME shows the arguments of one."
    return "\n\n".join([about, *tables, *broken_lines("connectors")])


def _describe_connector(name: str) -> str:
    """The signature and the docstring of a connector. Raises UsageError if there is none of this name."""
    from rlds_beam.connectors.catalog import connector_class, connector_names

    if name not in connector_names():
        raise UsageError(f"there is no connector {name!r}{did_you_mean(name, connector_names())}")
    arguments = re.sub(r": '([^']*)'", r": \1", str(inspect.signature(connector_class(name))))
    return f"{name}{arguments.removesuffix(' -> None')}\n\n{inspect.getdoc(connector_class(name))}"


TABLES: dict[str, Callable[[], str]] = {
    "rules": _list_rules,
    "signals": _list_signals,
    "formats": _list_formats,
    "connectors": _list_connectors,
}
"""Topic -> what makes its text."""
