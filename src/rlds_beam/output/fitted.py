"""The results of fitted connectors, saved in the output so that a resumed run need not read the dataset again."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam.encoding.checked_json import ANY, TEXT, check_json, read_json
from rlds_beam.output.files import FITTED
from rlds_beam.output.plans import OutputPlan

_SCHEMA = {"plan_sha256": TEXT, "results": [ANY]}


def write_fitted(output: str, plan: OutputPlan, results: Sequence[Any]) -> None:
    """Saves the results for later runs of the same plan."""
    content = {"plan_sha256": plan.digest, "results": list(results)}
    storage.write_text(storage.below(output, FITTED), json.dumps(content, indent=2) + "\n")


def read_fitted(output: str, plan: OutputPlan) -> list[Any] | None:
    """The results of an earlier run of the plan; None if there are none.

    Raises:
      UsageError: the file is malformed.
    """
    path = storage.join(output, FITTED)
    content = read_json(path) if storage.exists(path) else None
    if content is None:
        return None
    check_json(content, _SCHEMA, path)
    return list(content["results"]) if content["plan_sha256"] == plan.digest else None
