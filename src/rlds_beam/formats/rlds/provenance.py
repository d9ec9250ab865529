"""The name and version of a written dataset, and provenance.json."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from rlds_beam import storage
from rlds_beam._version import __version__
from rlds_beam.output.manifest import VERSION
from rlds_beam.output.plans import Inputs
from rlds_beam.reading.base import Source

PROVENANCE = "provenance.json"
_MAX_SHARDS = 10_000
"""Those of a split with more shards are not listed."""
_FROM_INFO = ("citation", "description", "location", "redistributionInfo", "releaseNotes")


def provenance(
    plan: Mapping[str, Any],
    inputs: Inputs,
    report: Mapping[str, Any],
    splits: Sequence[Mapping[str, Any]],
    source: Mapping[str, Any],
    fitted: Sequence[Any] | None = None,
) -> dict[str, Any]:
    """The content of provenance.json. It has nothing about this machine, so equal plans give equal bytes.

    Args:
      plan: the content of plan.json.
      inputs: the plan's input.
      report: the content of report.json.
      splits: the splits in dataset_info.json.
      source: facts about the input: its dataset_info.json (`info`), the names of its license files (`licences`), and
        its own provenance, if rlds-beam wrote it (`provenance`).
      fitted: the results of fitting connectors, the statistics of the dataset.
    """
    shards = {
        split: [{"file": file.name, "bytes": file.size, "fingerprint": file.content} for file in entry.shards()]
        for split, entry in inputs.items()
        if plan["splits"][split]["shards"] <= _MAX_SHARDS
    }
    slices = {split: entry["slice"] for split, entry in plan["splits"].items() if entry["slice"] != [0, None]}
    info = {name: source["info"][name] for name in _FROM_INFO if name in source["info"]}
    read = {"from": plan["from"], "features_sha256": plan.get("features_sha256")}
    counts = {name: report[name] for name in ("records", "valid", "repaired", "rejected")}
    dropped = {name: entry["records"] for name, entry in report.get("dropped", {}).items()}
    facts = {
        "written_by": f"rlds-beam {__version__}",
        "source": {
            "dataset": plan["dataset"],
            **read,
            "info": info,
            "licences": list(source["licences"]),
            "shards": shards,
            **({"slices": slices} if slices else {}),
        },
        "check": plan["check"],
        "connectors": plan.get("connectors", {"connectors": []}),
        "counts": {**counts, "dropped": dropped, "written": report["items_written"]},
        "rules": {rule: {k: v for k, v in entry.items() if k != "samples"} for rule, entry in report["rules"].items()},
        "splits": [{"name": split["name"], "episodes": sum(map(int, split["shardLengths"]))} for split in splits],
    }
    facts |= {"statistics": list(fitted)} if fitted else {}
    return facts | ({"source_provenance": source["provenance"]} if source["provenance"] else {})


def appended_provenance(earlier: Any, added: Mapping[str, Any]) -> dict[str, Any]:
    """The provenance of an output after an append.

    Args:
      earlier: its provenance before.
      added: that of the append, with the counts and splits of the whole.
    """
    source, new = dict(earlier["source"]), added["source"]
    shards = {split: list(entries) for split, entries in source["shards"].items()}
    for split, entries in new["shards"].items():
        shards.setdefault(split, []).extend(entries)
    others = [*source.get("appended", []), *([] if new["dataset"] == source["dataset"] else [new["dataset"]])]
    source |= {"shards": shards, **({"appended": list(dict.fromkeys(others))} if others else {})}
    whole = {name: added[name] for name in ("written_by", "counts", "rules", "splits")}
    return {**earlier, **whole, "source": source}


_VERSION = re.compile(r"\d+\.\d+\.\d+")
_NAME = re.compile(r"[a-z][a-z0-9_]*", re.IGNORECASE)
_LICENSE = re.compile(r"(LICEN[CS]E|COPYING|NOTICE)[\w.-]*")

CARRIED = (
    "description",
    "citation",
    "location",
    "redistributionInfo",
    "releaseNotes",
    "moduleName",
    "configName",
    "configDescription",
    "configTags",
    "supervisedKeys",
    "disableShuffling",
)
"""Keys of dataset_info.json that still hold for the edited dataset."""


def name_and_version(source: Source, directory: str) -> tuple[str, str]:
    """The name and version of the directory, if it is `…/NAME/1.0.0` as in TFDS, or else of the source."""
    parent, last = storage.split(directory.rstrip("/"))
    above = storage.split(parent)[1]
    own = source.dataset.split("/")[-1]
    version = next((v for v in (last, own) if _VERSION.fullmatch(v)), VERSION)
    of_config = above in source.dataset.split("/")[1:-1]  # …/NAME/CONFIG/1.0.0
    named = _VERSION.fullmatch(last) and _NAME.fullmatch(above) and not of_config
    return (above if named else source.name), version


def is_license(name: str) -> bool:
    """Whether a file next to a dataset is a license."""
    return _LICENSE.fullmatch(name) is not None
