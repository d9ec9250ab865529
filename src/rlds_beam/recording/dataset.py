"""What a recording writes: a dataset of episodes as TFDS lays it out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from rlds_beam import naming, storage
from rlds_beam.encoding.tfds.dataset_info import DATASET_INFO, FEATURES, dataset_info_json
from rlds_beam.encoding.tfds.rlds_dataset import features_json
from rlds_beam.encoding.tfds.rlds_records import encode_feature, example
from rlds_beam.episodes.episode import Column, Episode
from rlds_beam.episodes.flags import FLAGS
from rlds_beam.episodes.keys import EpisodeKey
from rlds_beam.episodes.schema import Field, Schema
from rlds_beam.images.encoded_images import EncodedImages
from rlds_beam.output.commits import RangeCommit
from rlds_beam.output.files import to_json
from rlds_beam.output.manifest import VERSION
from rlds_beam.output.tfds_metadata import split_infos
from rlds_beam.recording.propensities import MIXTURE
from rlds_beam.recording.settings import INFO, LOG_PROPENSITY, PROPENSITY, Recording, Settings
from rlds_beam.recording.spaces import Structure, number_field

if TYPE_CHECKING:
    from rlds_beam.recording.ranges import RolloutRange

Array: TypeAlias = "np.ndarray[Any, Any]"

METADATA = "metadata.json"


@dataclasses.dataclass(frozen=True)
class RecordedDataset:
    """The files of a recording. Pickles.

    Attributes:
      directory: where they go.
      name: of the dataset.
      schema: of its episodes.
      mixture: whether the propensity under the mixture of all policies is written, too.
      windows: whether trajectories are windows, which may be several episodes.
    """

    directory: str
    name: str
    schema: Schema
    mixture: bool
    windows: bool

    metadata = (FEATURES, DATASET_INFO, METADATA)

    @property
    def dataset(self) -> str:
        """`name/version`."""
        return f"{self.name}/{VERSION}"

    def file(self, work: RolloutRange) -> str:
        """The name of a range's file, as TFDS expects it."""
        return naming.shard_name(self.name, work.split, "tfrecord", work.number)

    def episode_metadata(self, name: str, policy: str, work: RolloutRange, recording: Recording) -> dict[str, Any]:
        """What is said of an episode."""
        numbers = {"policy_id": work.policy, "dataset_id": work.dataset, "trajectory_id": recording.trajectory}
        if self.windows:
            numbers |= {"part": recording.part, "start_step": recording.age}
        return {
            "episode_id": name,
            "policy": policy,
            "end": recording.end,
            **{path: np.int64(value) for path, value in numbers.items()},
        }

    def episode(self, key: EpisodeKey, columns: Mapping[str, Array], metadata: Mapping[str, Any]) -> Episode:
        """An episode of what was recorded, its images encoded."""
        steps: dict[str, Column] = {}
        for path, field in self.schema.steps.items():
            steps[path] = _encoded(columns[path], field) if field.encoding == "png" else columns[path]
        return Episode(key, steps, metadata)

    def encode(self, episode: Episode) -> bytes:
        """An episode as a record."""
        schema = self.schema
        features = {f"steps/{path}": encode_feature(episode.steps[path], field) for path, field in schema.steps.items()}
        for path, field in schema.metadata.items():
            features[f"episode_metadata/{path}"] = encode_feature(np.asarray([episode.metadata[path]]), field)
        return example(features)

    def write_metadata(self, done: Sequence[RangeCommit], metadata: Mapping[str, Any]) -> None:
        """Writes features.json, dataset_info.json and metadata.json."""
        splits = split_infos(self.directory, [(commit.split, one) for commit in done for one in commit.files])
        described = f"Recorded in {metadata['environment']} by rlds-beam."
        info = dataset_info_json(self.name, VERSION, splits, description=described)
        contents = {FEATURES: features_json(self.schema), DATASET_INFO: info, METADATA: metadata}
        for file, content in contents.items():
            storage.write_text(storage.below(self.directory, file), to_json(content))


def recorded_schema(
    observation: Structure, action: Structure, settings: Settings, *, propensity: bool, mixture: bool, images: bool
) -> Schema:
    """The schema of what is recorded."""
    fields = [leaf.field("observation", images) for leaf in observation.leaves]
    fields += [leaf.field("action") for leaf in action.leaves]
    fields += [number_field("reward", settings.reward), number_field("discount", "float32")]
    fields += [number_field(path, "bool") for path in FLAGS]
    names = (PROPENSITY, LOG_PROPENSITY, *(MIXTURE if mixture else ()))
    fields += [number_field(path, "float64") for path in (names if propensity else ())]
    for name, (dtype, shape) in settings.info.items():
        path = f"{INFO}/{name}"
        fields.append(
            Field(path, "string", (), "text", "Text") if dtype == "string" else number_field(path, dtype, shape)
        )
    episode = [Field(path, "string", (), "text", "Text") for path in ("episode_id", "policy", "end")]
    numbers = ("policy_id", "dataset_id", "trajectory_id", *(("part", "start_step") if settings.windows else ()))
    episode += [number_field(path, "int64") for path in numbers]
    return Schema({f.path: f for f in fields}, {f.path: f for f in episode})


def _encoded(pixels: Array, field: Field) -> EncodedImages:
    import imagecodecs

    data = np.empty(len(pixels), object)
    for i, image in enumerate(pixels):
        data[i] = bytes(imagecodecs.png_encode(image if image.shape[-1] > 1 else image[..., 0]))
    return EncodedImages(data, field.shape)
