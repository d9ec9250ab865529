"""`rlds-beam completion SHELL`: a script that completes commands, flags and their values in a shell.

The scripts ask `rlds-beam __complete` for what may follow, so they never get out of date.
"""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args, get_origin

from rlds_beam.checking.rules import POLICIES, RULES
from rlds_beam.cli import flags
from rlds_beam.cli.parsers import commands, find_job, job_parser
from rlds_beam.errors import MissingExtraError, UsageError
from rlds_beam.formats.registry import TRAJECTORIES
from rlds_beam.options import Options, distinct_groups, flag_name, type_hints
from rlds_beam.text import did_you_mean
from rlds_beam.user_functions import resolve

COMPLETE = "__complete"
"""The hidden command that the scripts run: `rlds-beam __complete SHELL WORD...`."""

SCRIPTS = {
    "bash": """\
_rlds_beam() {
  mapfile -t COMPREPLY < <("$1" __complete bash "${COMP_LINE:0:COMP_POINT}" 2>/dev/null)
  [[ ${#COMPREPLY[@]} == 1 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace
}
complete -o default -F _rlds_beam rlds-beam
""",
    "zsh": """\
#compdef rlds-beam
_rlds_beam() {
  local word about
  local -a flags others flag_texts other_texts
  while IFS=$'\\t' read -r word about; do
    if [[ $word == *= ]]; then flags+=("$word"); flag_texts+=("$word  $about")
    else others+=("$word"); other_texts+=("$word  $about"); fi
  done < <("${words[1]}" __complete zsh "${(@)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)
  if (( $#flags + $#others )); then
    compadd -l -S '' -d flag_texts -a flags
    compadd -l -d other_texts -a others
  else
    compset -P '--[^=]#='
    _files
  fi
}
if [[ $funcstack[1] == _rlds_beam ]]; then _rlds_beam "$@"; else compdef _rlds_beam rlds-beam; fi
""",
    "fish": """\
function __rlds_beam_complete
    set -l word (commandline -ct)
    set -l found (rlds-beam __complete fish (commandline -opc)[2..-1] "$word" 2>/dev/null)
    if set -q found[1]
        printf '%s\\n' $found
    else
        set -l flag (string match -r '^--[^=]+=' -- "$word")
        printf '%s\\n' "$flag"(__fish_complete_path (string replace -- "$flag" '' "$word"))
    end
end
complete -c rlds-beam -f -k -a '(__rlds_beam_complete)'
""",
}

INSTALL = """
    echo 'source <(rlds-beam completion bash)' >> ~/.bashrc
    echo 'source <(rlds-beam completion zsh)' >> ~/.zshrc     # after compinit
    rlds-beam completion fish > ~/.config/fish/completions/rlds-beam.fish
"""

_SIGNALS = "rlds_beam.checking.signals.base:SIGNALS"
_NAMES: Mapping[str, Sequence[str] | str] = {
    "from_": "rlds_beam.formats.registry:source_names",
    "to": "rlds_beam.formats.registry:output_names",
    "runner": ("local", "flink", "dataflow"),
    **{policy: [rule for rule in RULES if policy in POLICIES[rule]] for policy in ("accept", "repair", "fail")},
    **dict.fromkeys(("signal", "reject", "threshold"), _SIGNALS),
    "preset": "rlds_beam.connectors.cleaning.presets:PRESETS",
    "ros_distro": "rlds_beam.formats.ros2.messages:distributions",
    "profile": "rlds_beam.formats.profiles.catalog:shipped_profiles",
}
"""The names that an option takes (a value begins with), if its type does not list them; or the place of their table."""

Word = tuple[str, str]
"""What may follow, and what it means."""


def main(command: str, arguments: Sequence[str]) -> int:
    """Prints a script or, for a script, the words that may follow.

    Raises:
      UsageError: there is no script for that shell.
    """
    if command == COMPLETE:
        for line in _lines(arguments[0], arguments[1:]):
            print(line)
    elif not arguments or arguments[0] in ("-h", "--help"):
        usage = f"usage: rlds-beam completion {{{','.join(SCRIPTS)}}}"
        print(f"{usage}\n\nPrints a script. To install it:\n{flags.commands(INSTALL)}")
    elif arguments[0] not in SCRIPTS:
        hint = did_you_mean(arguments[0], SCRIPTS, otherwise=f"there is for {', '.join(SCRIPTS)}")
        raise UsageError(f"there is no completion for {arguments[0]!r}{hint}")
    else:
        print(SCRIPTS[arguments[0]], end="")
    return 0


def _lines(shell: str, arguments: Sequence[str]) -> Iterator[str]:
    words = _split(arguments[0]) if shell == "bash" else list(arguments)
    for word, about in complete(words):
        if shell == "bash":  # which takes = and : for the start of a word
            yield word[len(re.sub(r"[^=:]*$", "", words[-1])) :]
        else:
            yield f"{word}\t{about}"


def _split(line: str) -> list[str]:
    """The words after the command, the last one unfinished."""
    try:
        words = shlex.split(line)[1:]
    except ValueError:  # in a quotation
        words = line.split()[1:]
    return [*words, ""] if line[-1:].isspace() else words


def complete(words: Sequence[str]) -> list[Word]:
    """The completions of the last of `words`; none if it may be a file."""
    *before, word = words or [""]
    if not before:
        found = [*commands().items(), ("--help", ""), ("--version", "")]
    elif before == ["help"]:
        from rlds_beam.cli.topics import SEARCHABLE, TOPICS, list_names

        names = [(name, "") for topic in SEARCHABLE for name in list_names(topic)]
        found = [*((name, line) for name, (line, _) in TOPICS.items()), *commands().items(), *names]
    elif before[0] == "help" and len(before) == 2:
        from rlds_beam.cli.topics import list_names

        found = [(name, "") for name in list_names(before[1])]
    elif before == ["completion"]:
        found = [(shell, "") for shell in SCRIPTS]
    elif "--" not in before and find_job(before[0]) is not None:
        found = _of_job(before[0], before[1:], word)
    else:
        found = []
    return [(text, about) for text, about in found if text.startswith(word)]


def _of_job(job: str, before: Sequence[str], word: str) -> list[Word]:
    flag, equals, value = word.partition("=")
    if before and before[-1].startswith("--") and not word.startswith("-"):
        *before, flag = before
        value = word
    config_class = job_parser(job, {}).config_class
    chosen = {name: default for name, default in _defaults(config_class) if default}
    try:
        chosen |= flags.choices(config_class, before, lenient=True)
        classes = [config_class, *(group.options_class for group in distinct_groups(config_class, chosen))]
        parser = job_parser(job, chosen).parser
    except UsageError:  # for example an unknown format
        return []
    if equals or not word.startswith("-"):
        names = next((found for kind in classes if (found := _values(kind, flag))), ())
        start = word[: len(word) - len(value.rpartition(",")[2])]
        return [(f"{start}{name}", "") for name in names]
    visible = [action for action in parser._actions if action.option_strings and action.help != argparse.SUPPRESS]
    return [
        (action.option_strings[-1] + ("" if action.nargs == 0 else "="), (action.help or "").replace("%%", "%"))
        for action in visible
    ]


def _defaults(config_class: type[Options]) -> Iterator[tuple[str, str]]:
    """The options that decide which others exist, with their defaults."""
    for name, field in config_class.__dataclass_fields__.items():
        if field.metadata.get("chooses") and field.default is not None:
            yield name, str(field.default) or TRAJECTORIES


def _values(options_class: type[Options], flag: str) -> Sequence[str]:
    """The names that a flag takes; none if it takes anything else."""
    for name, hint in type_hints(options_class).items():
        if f"--{flag_name(name)}" == flag:
            names = _NAMES.get(name, get_args(hint) if get_origin(hint) is Literal else ())
            return _look_up(names, flag, options_class) if isinstance(names, str) else names
    return ()


def _look_up(place: str, flag: str, options_class: type[Options]) -> Sequence[str]:
    """The names of a table, or those that a function returns; none if it needs an extra that is not installed."""
    table: Any = resolve(place, flag, callable_only=False)
    try:
        if flag == "--profile":
            return list(table(npz=options_class.__name__ == "NpzOptions"))
        return list(table() if callable(table) else table)
    except MissingExtraError:
        return ()
