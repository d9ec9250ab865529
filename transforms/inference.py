"""Runs models over recorded episodes with Beam's RunInference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from apache_beam.ml.inference.base import ModelHandler

from rlds_beam.connectors.base import connect
from rlds_beam.connectors.fields import StepFields
from rlds_beam.connectors.learner.sequences import AddModelOutputs
from rlds_beam.episodes.episode import Episode
from rlds_beam.images.encoded_images import EncodedImages


class EpisodeModelHandler(ModelHandler[Episode, Episode, AddModelOutputs]):
    """Runs a model over batches of episodes in Beam's RunInference:

        episodes | RunInference(EpisodeModelHandler(AddModelOutputs("my_models:Policy")))

    The results are the episodes with the model's outputs added to their steps, as `AddModelOutputs` does. A recurrent
    model is called once per step of the longest episode of a batch, so large batches are faster.

    Args:
      outputs: the model, and how to call it.
      fields: the names of the step fields; RLDS's names by default.
      episodes: the minimum and maximum number of episodes in a batch.
    """

    def __init__(
        self,
        outputs: AddModelOutputs,
        fields: StepFields | None = None,
        *,
        episodes: tuple[int, int] = (1, 64),
    ):
        super().__init__(min_batch_size=episodes[0], max_batch_size=episodes[1])
        self._outputs, self._fields = outputs, fields

    def load_model(self) -> AddModelOutputs:
        self._outputs.load()
        return self._outputs

    def run_inference(
        self, batch: Sequence[Episode], model: AddModelOutputs, inference_args: dict[str, Any] | None = None
    ) -> Iterable[Episode]:
        return connect([model], batch, self._fields).episodes

    def get_num_bytes(self, batch: Sequence[Episode]) -> int:
        columns = (column for episode in batch for column in episode.steps.values())
        return sum((column.data if isinstance(column, EncodedImages) else column).nbytes for column in columns)
