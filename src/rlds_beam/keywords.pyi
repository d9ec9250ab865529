"""The keyword arguments of the jobs; written by docs/keyword_types.py from the classes of the options."""

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

Text: TypeAlias = str | os.PathLike[str]
Names: TypeAlias = Text | Sequence[Text]

class FromFormats(TypedDict, total=False):
    merge_fields: Text
    profile: Text | None
    raw_images: Literal['png', 'jpeg', 'raw']
    topics: Text | None
    ros_distro: Text | None

class CheckConfig(TypedDict, total=False):
    output: Text | None
    signal: Text | None
    threshold: Names
    decode: int
    write_exclude: Text | None

class RunOptions(TypedDict, total=False):
    runner: Text
    workers: int | None
    beam_options: Names

class FlinkOptions(TypedDict, total=False):
    flink_master: Text | None
    flink_job_server_jar: Text | None
    parallelism: int | None
    environment_type: Literal['EXTERNAL', 'DOCKER', 'PROCESS'] | None
    environment_config: Text | None

class DataflowOptions(TypedDict, total=False):
    project: Text | None
    region: Text | None
    temp_location: Text | None
    staging_location: Text | None
    worker_container: Text | None

class GateOptions(TypedDict, total=False):
    report: Text | None
    format: Literal['json', 'junit'] | None

class PrintOptions(TypedDict, total=False):
    progress: Literal['auto', 'plain', 'json', 'none']

class ConnectorOptions(TypedDict, total=False):
    connectors: Any | None
    preset: Text | None
    exclude: Text | None
    only: Text | None

class MeaningOptions(TypedDict, total=False):
    names: Mapping[str, Names] | Names
    task: Text | None
    task_file: Text | None

class CheckOptions(TypedDict, total=False):
    accept: Names
    repair: Names
    fail: Names
    max_image_pixels: int
    decode_images: bool
    propensity_fn: str | Callable[..., Any] | None
    reject: Text | None
    check_unused: bool

class SourceOptions(TypedDict, total=False):
    from_: str | Callable[..., Any] | None
    split: Text | None
    features: Text | None

class ToFormats(TypedDict, total=False):
    format: Literal['tfrecord', 'array_record', 'parquet'] | Literal['tfrecord', 'array_record']
    array_record_beside: bool
    images: Literal['blosc', 'jpegxl'] | Literal['copy', 'video'] | Literal['raw', 'jpeg'] | None
    items: Literal['pairs', 'sequences', 'episodes', 'frames']
    sequence_length: int
    stride_length: int
    pad_end_of_episodes: bool
    tile_end_of_episodes: bool
    across_episodes: bool
    max_sequence_length: int | None
    bypass_partial_episodes: bool
    terminal_discount: Literal['transition', 'boundary']
    last_step: Literal['drop', 'keep', 'absorbing'] | Literal['drop', 'keep'] | None
    policy_info_fn: str | Callable[..., Any] | None
    policy_info_fields: Names
    observation_fields: Names
    cast: Names
    keep: Names
    lerobot_version: Literal['3.0', '2.1']
    fps: float | None
    round_fps: bool
    map: Names
    image_samples: int | None
    vcodec: Literal['av1', 'h264']
    crf: int
    gop: int
    encoder_preset: Text | None
    depth: Names
    depth_min: float
    depth_max: float
    depth_shift: float
    modality: Text | None
    compressor: Literal['lz4', 'zstd']
    step_per_trajectory: int | None
    ragged: Literal['pad', 'reject']
    behavior_policy: Text | None
    n_actions: int | None

class ConvertOptions(TypedDict, total=False):
    shards: int | None
    overwrite: bool
    append: bool
    allow_empty: bool

class OutputOptions(TypedDict, total=False):
    to: str | Callable[..., Any]
    robot_type: Text | None

class ExampleConfig(TypedDict, total=False):
    episodes: int
    broken: int
    shards: int
    seed: int
    camera: bool
    robot: bool

class InspectConfig(TypedDict, total=False):
    sample_bytes: int

class PushConfig(TypedDict, total=False):
    report: Text | None

class PushOptions(TypedDict, total=False):
    rejected: Text | None
    allow_empty: bool

class ReverbOptions(TypedDict, total=False):
    reverb: Names
    table: Names
    writer: Literal['stream', 'observer']
    columns: bool
    module: Text | None
    priority: Text
    chunk_length: int | None
    timeout: float
    allow_eviction: bool
    allow_blocking: bool

class ItemOptions(TypedDict, total=False):
    items: Literal['pairs', 'sequences', 'episodes', 'frames']
    sequence_length: int
    stride_length: int
    pad_end_of_episodes: bool
    tile_end_of_episodes: bool
    across_episodes: bool
    max_sequence_length: int | None
    bypass_partial_episodes: bool

class FrameOptions(TypedDict, total=False):
    terminal_discount: Literal['transition', 'boundary']
    last_step: Literal['drop', 'keep', 'absorbing'] | None
    policy_info_fn: str | Callable[..., Any] | None
    policy_info_fields: Names
    observation_fields: Names
    cast: Names

class RecordOptions(TypedDict, total=False):
    shards: int | None
    overwrite: bool
    allow_empty: bool

class RolloutOptions(TypedDict, total=False):
    name: Text | None
    env: Any
    env_config: Text | None
    policy: Any
    episodes: int | None
    steps: int | None
    max_episode_steps: int | None
    minimum_rollout_length: int
    maximum_rollout_length: int
    single_interaction: bool
    datasets: int
    obtain_info: bool
    info_keys: Names
    record_unclipped_action: bool
    image_encoding: Literal['png', 'raw']
    reward_dtype: Literal['float32', 'float64']
    seed: int
    envs_per_worker: int
    logger: Literal['auto', 'envlogger', 'own']

class ReportConfig(TypedDict, total=False):
    output: Text
    source: Text | None
    samples: int
    worst: int
    threshold: Names
    decode: int

class StatsConfig(TypedDict, total=False):
    output: Text | None
    fields: Names
    format: Literal['own', 'openvla', 'openvla_dataset', 'octo', 'openpi', 'lerobot']
    action: Text
    proprio: Text | None
    allow_empty: bool
    by: Text | None
    target_propensity_fn: Text | None

class UploadConfig(TypedDict, total=False):
    revision: Text
    private: bool
    message: Text
    tag: Text | None
    overwrite: bool

class Check(SourceOptions, CheckOptions, MeaningOptions, ConnectorOptions, PrintOptions, GateOptions, DataflowOptions, FlinkOptions, RunOptions, CheckConfig, FromFormats, total=False):
    pass

class Compare(SourceOptions, PrintOptions, DataflowOptions, FlinkOptions, RunOptions, FromFormats, total=False):
    pass

class Convert(SourceOptions, CheckOptions, MeaningOptions, ConnectorOptions, OutputOptions, ConvertOptions, PrintOptions, DataflowOptions, FlinkOptions, RunOptions, FromFormats, ToFormats, total=False):
    pass

class Example(PrintOptions, ExampleConfig, total=False):
    pass

class Inspect(SourceOptions, CheckOptions, MeaningOptions, ConnectorOptions, OutputOptions, InspectConfig, FromFormats, ToFormats, total=False):
    pass

class Push(SourceOptions, CheckOptions, MeaningOptions, ConnectorOptions, FrameOptions, ItemOptions, ReverbOptions, PushOptions, PrintOptions, DataflowOptions, FlinkOptions, RunOptions, PushConfig, FromFormats, total=False):
    pass

class Record(RolloutOptions, CheckOptions, MeaningOptions, ConnectorOptions, OutputOptions, RecordOptions, PrintOptions, DataflowOptions, FlinkOptions, RunOptions, ToFormats, total=False):
    pass

class Report(SourceOptions, CheckOptions, MeaningOptions, ConnectorOptions, PrintOptions, DataflowOptions, FlinkOptions, RunOptions, ReportConfig, FromFormats, total=False):
    pass

class Stats(SourceOptions, CheckOptions, MeaningOptions, ConnectorOptions, PrintOptions, DataflowOptions, FlinkOptions, RunOptions, StatsConfig, FromFormats, total=False):
    pass

class Upload(PrintOptions, UploadConfig, total=False):
    pass

class Validate(SourceOptions, CheckOptions, MeaningOptions, ConnectorOptions, PrintOptions, GateOptions, DataflowOptions, FlinkOptions, RunOptions, FromFormats, total=False):
    pass

class Load(CheckOptions, MeaningOptions, ConnectorOptions, FromFormats, total=False):
    from_: str | Callable[..., Any] | None
    features: Text | None

class Show(SourceOptions, FromFormats, total=False):
    pass
