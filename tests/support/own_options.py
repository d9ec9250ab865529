"""A user's output and source with options: `--to=own_options:ScaledOutput --from=own_options:HeadSource`."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from rlds_beam.errors import UsageError
from rlds_beam.formats.numpy.output import NumpyOutput
from rlds_beam.formats.rlds.source import RldsSource
from rlds_beam.options import Options, option


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScaleOptions(Options):
    """How values are scaled."""

    gamma: float = option(1.0, "a factor", least=0)
    unit: Literal["points", "percent"] = option("points", "the unit of values")


class ScaledOutput(NumpyOutput):
    options_class = ScaleOptions

    @classmethod
    def create(cls, source: Any, connectors: Any, directory: str, options: ScaleOptions) -> NumpyOutput:
        assert type(options) is ScaleOptions
        if options.gamma > 1:
            raise UsageError(f"--gamma={options.gamma}: it must be at most 1")
        return super().create(source, connectors, directory, Options())


@dataclasses.dataclass(frozen=True, kw_only=True)
class HeadOptions(Options):
    """Which files are read."""

    limit: int | None = option(None, "the maximum number of files to read", least=1)


class HeadSource(RldsSource):
    options_class = HeadOptions

    @classmethod
    def open(
        cls, input: Any, *, split: str | None = None, features: str | None = None, options: HeadOptions | None = None
    ) -> RldsSource:
        source, limit = super().open(input, split=split, features=features), options and options.limit
        splits = [dataclasses.replace(s, shards=s.shards[:limit]) for s in source.splits]
        return dataclasses.replace(source, splits=tuple(splits))
