"""The jobs, one per module: a frozen config, `define_pipeline(root, config)`, and a function that runs the job.

    from rlds_beam.pipelines.convert import ConvertConfig, convert

`rlds_to_trajectories` and `rlds_to_reverb` are whole pipelines on one screen each, made of public transforms.

Only the modules are public names of this package: `rlds_beam.pipelines.convert` cannot be both a module and a function.
"""

import importlib
import sys
from typing import Any

from rlds_beam import lazy, plugins

__all__ = [
    "browse",
    "check",
    "compare",
    "convert",
    "example",
    "index",
    "inspect",
    "push",
    "record",
    "report",
    "rlds_to_reverb",
    "rlds_to_trajectories",
    "serve",
    "show",
    "stats",
    "upload",
]


def __getattr__(name: str) -> Any:
    """Imports a job's module, ours or another package's, on first use, so the command line imports one job, not all."""
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    if not lazy.is_inside(__name__, name) and (config_class := plugins.find("commands", name)) is not None:
        return sys.modules[config_class.__module__]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
