"""Reads untrusted YAML files, with limits on nesting and size."""

from __future__ import annotations

from typing import Any

from rlds_beam.encoding.checked_json import check_depth
from rlds_beam.errors import UsageError
from rlds_beam.text import shortened

_MOST_NODES = 1_000_000
"""Maximum lists, mappings, and values; nested aliases can expand a few lines to billions."""


def parse_yaml(text: str, where: str) -> Any:
    """Parses YAML; `where` names it in errors.

    Raises:
      UsageError: the text is not valid YAML, is nested too deeply (or in itself), or has too many values.
    """
    import yaml

    try:
        content = yaml.safe_load(text)
        check_depth(content, _MOST_NODES)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f"line {mark.line + 1}: " if mark else ""
        raise UsageError(f"{where}: not valid YAML: {line}{error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: not valid YAML: {shortened(error)}") from None
    except RecursionError:
        raise UsageError(f"{where}: cannot read this YAML: it is nested too deeply or too large") from None
    except ValueError as error:  # a number with thousands of digits, or an invalid date
        raise UsageError(f"{where}: not valid YAML: {shortened(error)}") from None
    return content
