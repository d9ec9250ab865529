"""YAML files that a person wrote, or somebody else did: bounded before they are read."""

from __future__ import annotations

from typing import Any

from rlds_beam.encoding.checked_json import check_depth
from rlds_beam.errors import UsageError
from rlds_beam.text import shortened

_MOST_NODES = 1_000_000
"""The most lists, mappings and values: aliases of aliases make billions of them from a few lines."""


def parse_yaml(text: str, where: str) -> Any:
    """The content of YAML; `where` names it in errors.

    Raises:
      UsageError: it is not YAML, is nested too deeply (or within itself), or has too many values.
    """
    import yaml

    try:
        content = yaml.safe_load(text)
        check_depth(content, _MOST_NODES)
    except yaml.YAMLError as error:
        raise UsageError(f"{where}: {error}") from None
    except RecursionError:
        raise UsageError(f"{where}: this is not YAML that can be read: it is nested too deeply, or too large") from None
    except ValueError as error:  # a number of thousands of digits, a date that there is not
        raise UsageError(f"{where}: this is not YAML: {shortened(error)}") from None
    return content
