"""`rlds-beam help`: the tables of rules, signals, formats, and connectors, and the docstring of a connector."""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterable, Sequence

from rlds_beam import plugins
from rlds_beam.checking.rules import POLICIES, RULES
from rlds_beam.cli.arguments import WIDTH
from rlds_beam.errors import UsageError
from rlds_beam.formats.registry import FORMATS, other_names
from rlds_beam.text import did_you_mean

TOPICS = ("rules", "signals", "formats", "connectors")


def main(words: Sequence[str]) -> int:
    """Prints a table. Raises UsageError if there is no such table or connector."""
    topic, *names = words or ["help"]
    if topic in ("-h", "--help", "help"):
        print(f"usage: rlds-beam help {{{','.join(TOPICS)}}}\n       rlds-beam help connectors NAME")
    elif topic == "rules":
        print("A record that breaks a rule is rejected, unless --repair, --accept, or --fail\nnames the rule.\n")
        can = {rule: ", ".join({*POLICIES[rule]} - {"fail", "reject"}) for rule in RULES}
        print(_table((rule, can[rule], RULES[rule]) for rule in RULES))
    elif topic == "signals":
        from rlds_beam.checking.signals.base import SIGNALS

        print("rlds-beam check measures these. --threshold=jump=6 sets a threshold,\n--reject='jump > 6' leaves")
        rows = ((signal.name, f"{signal.threshold:g} {signal.unit}", signal.summary) for signal in SIGNALS.values())
        print(f"episodes out.\n\n{_table(rows)}")
    elif topic == "formats":
        print(
            "--from=FORMAT reads a format, --to=FORMAT writes it. Your own: --from=module:Class,\n--to=module:Class.\n"
        )
        ours = [
            (name, "from" if known.source else "", "to" if known.output else "", known.about)
            for name, known in FORMATS.items()
        ]
        print(_table([*ours, *((name, "", "", plugins.describe_package("formats", name)) for name in other_names())]))
    elif topic == "connectors":
        print(_describe_connector(names[0]) if names else _list_connectors())
    else:
        raise UsageError(f"there is no help on {topic!r}{did_you_mean(topic, TOPICS)} (rlds-beam help lists all)")
    return 0


def _table(rows: Iterable[Sequence[str]]) -> str:
    """Rows of text, aligned and indented by two spaces; the last column is wrapped."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)][:-1]
    lines = []
    for *cells, text in rows:
        head = "".join(f"  {cell:<{width}}" for cell, width in zip(cells, widths, strict=True)) + "  "
        lines.append(textwrap.fill(text, WIDTH, initial_indent=head, subsequent_indent=" " * len(head)))
    return "\n".join(lines)


def _list_connectors() -> str:
    from rlds_beam.connectors import CONNECTORS
    from rlds_beam.connectors.catalog import SECTIONS, names, summary

    groups = {title: [(name, summary(name)) for name in names(modules)] for title, modules in SECTIONS.items()}
    others = [name for name in plugins.names("connectors") if name not in CONNECTORS]
    groups["Of other packages"] = [(name, plugins.describe_package("connectors", name)) for name in others]
    tables = [f"{title}:\n{_table(rows)}" for title, rows in groups.items() if rows]
    return "\n\n".join(["rlds-beam help connectors NAME shows the arguments of one.", *tables])


def _describe_connector(name: str) -> str:
    """The signature and the docstring of a connector. Raises UsageError if there is none of this name."""
    from rlds_beam.connectors.catalog import connector_class, connector_names

    if name not in connector_names():
        raise UsageError(f"there is no connector {name!r}{did_you_mean(name, connector_names())}")
    arguments = re.sub(r": '([^']*)'", r": \1", str(inspect.signature(connector_class(name))))
    return f"{name}{arguments.removesuffix(' -> None')}\n\n{inspect.getdoc(connector_class(name))}"
