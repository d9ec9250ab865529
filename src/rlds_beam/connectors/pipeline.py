"""A pipeline: a list of connectors that is itself a connector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from rlds_beam.connectors.base import Batch, Connector, name_of, run
from rlds_beam.errors import UsageError
from rlds_beam.text import did_you_mean
from rlds_beam.user_functions import configurable

Which: TypeAlias = "str | type | Connector"
"""How to refer to a connector of a pipeline: by name, by class, or by the object."""


@configurable
class ConnectorPipeline:
    """Connectors that run in order. Pipelines can be nested and pickled.

        pipeline = ConnectorPipeline([AddObservationsFromEpisodesToBatch(), BatchIndividualItems()])
        pipeline.insert_before("BatchIndividualItems", AddColumnsFromEpisodesToTrainBatch())
        connect([pipeline], episodes).modules["default_policy"]["obs"]

    Methods that change the pipeline return it, so they can be chained. Refer to a connector by name, by class, or by
    the object; the first match counts.
    """

    def __init__(self, connectors: Sequence[Connector] = ()):
        self.connectors = list(connectors)

    def __call__(self, batch: Batch) -> Batch:
        return run(self.connectors, batch)

    def __iter__(self) -> Iterator[Connector]:
        return iter(self.connectors)

    def __len__(self) -> int:
        return len(self.connectors)

    def __repr__(self) -> str:
        return f"ConnectorPipeline([{', '.join(map(name_of, self.connectors))}])"

    def append(self, connector: Connector) -> ConnectorPipeline:
        self.connectors.append(connector)
        return self

    def prepend(self, connector: Connector) -> ConnectorPipeline:
        self.connectors.insert(0, connector)
        return self

    def insert_before(self, which: Which, connector: Connector) -> ConnectorPipeline:
        self.connectors.insert(self._index(which), connector)
        return self

    def insert_after(self, which: Which, connector: Connector) -> ConnectorPipeline:
        self.connectors.insert(self._index(which) + 1, connector)
        return self

    def remove(self, which: Which) -> ConnectorPipeline:
        del self.connectors[self._index(which)]
        return self

    def _index(self, which: Which) -> int:
        for i, connector in enumerate(self.connectors):
            if connector is which or name_of(connector) == which or type(connector) is which:
                return i
        name = which if isinstance(which, str) else getattr(which, "__name__", name_of(which))  # type: ignore[arg-type]
        near = did_you_mean(name, map(name_of, self.connectors))
        raise UsageError(f"{name} is not in {self!r}{near}")
