"""The jobs, a module each: a frozen config, `define_pipeline(root, config)`, and a function that runs the job.

    from rlds_beam.pipelines.convert import ConvertConfig, convert

The modules are the public names of this package, and their content stays in them: `rlds_beam.pipelines.convert` could
not be the module and the function at once.
"""

import importlib
from typing import Any

__all__ = ["convert", "doctor", "example", "inspect", "push", "record", "serve", "stats", "validate"]


def __getattr__(name: str) -> Any:
    """A job's module, imported when it is first used: the command line imports one job, not all."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return __all__
