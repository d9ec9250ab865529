"""The options of a job, in groups that jobs mix: each is Python API, flag and JSON at once.

Plain frozen dataclasses and nothing heavy, so that `--help` answers at once. A job's config
inherits the groups it needs (`class ConvertConfig(SourceOptions, CheckOptions, ...)`), and the
core functions take the group they need, so a config can be handed to them as it is.
The text in a field's metadata (`help`) is the flag's help.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Literal, cast

from rlds_beam.checking.rules import POLICIES, RULES, Policy
from rlds_beam.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self  # of typing from Python 3.11 on


def option(default: Any, help: str, **metadata: Any) -> Any:
    """A dataclass field with a help text."""
    return dataclasses.field(default=default, metadata={"help": help, **metadata})


class Options:
    """The root of all groups: a job's config runs the checks of each group that it mixes."""

    def __post_init__(self) -> None: ...

    @classmethod
    def of(cls, options: Any) -> Self:
        """The options of this group alone, out of a job's that mixes it in."""
        return cls(**{field.name: getattr(options, field.name) for field in dataclasses.fields(cast(Any, cls))})


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    """What is done with an episode that breaks a rule.

    Where a rule is named several times, fail wins over repair, and repair over accept.
    """

    accept: tuple[str, ...] = option((), "rules whose breach is let through (comma separated)")
    repair: tuple[str, ...] = option((), "rules whose breach is mended where it can be (comma separated)")
    fail: tuple[str, ...] = option((), "rules whose first breach ends the job (comma separated)")
    max_image_pixels: int = option(1 << 26, "an image of more pixels is image_too_large")
    decode_images: bool = option(
        False, "decode every image while checking, not only its header (convert decodes those that it writes anyway)"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for policy in ("accept", "repair", "fail"):
            for rule in getattr(self, policy):
                if rule not in RULES:
                    raise UsageError(f"--{policy}={rule}: there is no such rule; the rules are {', '.join(RULES)}")
                if policy not in POLICIES[rule]:
                    can = ", ".join(r for r in RULES if policy in POLICIES[r])
                    raise UsageError(f"--{policy}={rule}: {rule} cannot be {policy}ed; these can: {can}")

    def policy(self, rule: str) -> Policy:
        """What happens to an episode that breaks `rule`."""
        if rule in self.fail:
            return "fail"
        if rule in self.repair:
            return "repair"
        if rule in self.accept:
            return "accept"
        return "reject"


CASTS = ("float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16")
"""The dtypes that trajectory records can hold: those that TF-Agents reads (example_encoding._validate_dtype)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class FrameOptions(Options):
    """How the steps of an episode become TF-Agents frames (one `Trajectory` a step)."""

    terminal_discount: Literal["transition", "boundary"] = option(
        "transition",
        "where a terminal state's discount 0 goes: on the frame that steps into it (what TF-Agents trains on), "
        "or on the boundary frame only (bit for bit what TF-Agents' rlds_to_reverb writes)",
    )
    last_step: Literal["drop", "absorbing"] = option(
        "drop",
        "the last step's action and reward: void, as RLDS says (drop), or meant, and kept by an added zero step "
        "(absorbing)",
    )
    policy_info_fn: str | None = option(
        None, "module:function, called with the columns (current_steps, next_steps) of an episode"
    )
    policy_info_fields: tuple[str, ...] = option((), "extra numeric step fields to carry in policy_info")
    observation_fields: tuple[str, ...] = option((), "observation fields to keep (all, if none is named)")
    cast: tuple[str, ...] = option((), "leaves to write as another dtype: observation/grip=uint8,reward=float32")

    def __post_init__(self) -> None:
        super().__post_init__()
        for text in self.cast:
            path, _, dtype = text.partition("=")
            if not path or dtype not in CASTS:
                raise UsageError(f"--cast={text}: expected LEAF=DTYPE, the dtype one of {', '.join(CASTS)}")

    @property
    def casts(self) -> dict[str, str]:
        """From a trajectory leaf's path to the dtype that it is written in."""
        return dict(text.split("=") for text in self.cast)


def parse_max_rejected(text: str) -> int | float:
    """Reads `--max_rejected`: `12` is a count; `0.05` and `5%` are a fraction of the records read.

    Raises:
      UsageError: it is neither, or is negative, or a fraction above 1.
    """
    try:
        if text.strip().isdecimal():
            return int(text)
        fraction = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        fraction = -1.0
    if not 0 <= fraction <= 1:
        raise UsageError(f"--max_rejected={text}: expected a count (12) or a fraction of the records (0.05 or 5%)")
    return fraction


ItemKind = Literal["pairs", "sequences", "episodes", "frames"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ItemOptions(Options):
    """Which frames make one training item; the names are those of TF-Agents' Reverb observers."""

    items: ItemKind = option("pairs", "what one item is")
    sequence_length: int = option(2, "frames in an item (sequences)")
    stride_length: int = option(1, "frames between the starts of two items (sequences)")
    pad_end_of_episodes: bool = option(False, "fill an episode shorter than an item with boundary frames")
    tile_end_of_episodes: bool = option(False, "start an item at every frame, filling the tail (needs padding)")
    across_episodes: bool = option(False, "let sequences run over the end of an episode into the next of the shard")
    max_sequence_length: int | None = option(None, "frames in an item at most (episodes)")
    bypass_partial_episodes: bool = option(False, "leave out longer episodes instead of rejecting them (episodes)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.sequence_length < 1 or self.stride_length < 1:
            raise UsageError("--sequence_length and --stride_length must be at least 1")
        if self.tile_end_of_episodes and not self.pad_end_of_episodes:
            raise UsageError("--tile_end_of_episodes needs --pad_end_of_episodes")
        if self.max_sequence_length is not None and self.max_sequence_length < 1:
            raise UsageError("--max_sequence_length must be at least 1")
        if self.bypass_partial_episodes and self.max_sequence_length is None:
            raise UsageError("--bypass_partial_episodes needs --max_sequence_length")
        self._only_for(
            "sequences", "sequence_length", "stride_length", "pad_end_of_episodes", "tile_end_of_episodes",
            "across_episodes",
        )  # fmt: skip
        self._only_for("episodes", "max_sequence_length", "bypass_partial_episodes")

    def _only_for(self, items: str, *names: str) -> None:
        """Refuses options that would do nothing: those of another kind of items."""
        for field in dataclasses.fields(ItemOptions):
            if self.items != items and field.name in names and getattr(self, field.name) != field.default:
                raise UsageError(f"--{field.name} is for --items={items}, not --items={self.items}")

    @property
    def length(self) -> int | None:
        """Frames in an item; None for whole episodes; 1 for single frames (no time axis on disk)."""
        return {"pairs": 2, "sequences": self.sequence_length, "frames": 1, "episodes": None}[self.items]

    @property
    def stride(self) -> int:
        return self.stride_length if self.items == "sequences" else 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceOptions(Options):
    """What to read."""

    split: str | None = option(None, "split or slice, in TFDS's notation: train, train[:10%], train+test (all splits)")
    features: str | None = option(None, "path of a features.json, where it does not lie beside the input")


Images = Literal["raw", "jpeg"]


@dataclasses.dataclass(frozen=True)
class ConvertOptions(ItemOptions, FrameOptions, CheckOptions, SourceOptions):
    """What a conversion reads and writes."""

    input: str = option(dataclasses.MISSING, "a TFDS or EnvLogger dataset directory, or shard files", positional=True)
    output: str = option(dataclasses.MISSING, "directory to write to", positional=True)
    _: dataclasses.KW_ONLY
    images: Images = option("raw", "how images are written: decoded, or as JPEG")
    shards: int | None = option(None, "output shards of each split (chosen by size)")
    overwrite: bool = option(False, "replace what an earlier job wrote to the output")


WriterKind = Literal["stream", "observer"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReverbOptions(Options):
    """Which tables of which Reverb servers items go to, and how."""

    reverb: tuple[str, ...] = option((), "host:port of a server, or of several (comma separated)", metavar="SERVERS")
    table: tuple[str, ...] = option((), "table to fill, or several: every item goes into each", metavar="TABLES")
    writer: WriterKind = option(
        "stream",
        "stream writes each item once, however often the job is retried or run again; observer writes through "
        "TF-Agents' own observers, at least once",
    )
    priority: str = option(
        "1", "of each item: a number, a leaf of the frames (reward, observation/progress), or module:function"
    )
    chunk_length: int | None = option(None, "frames in a chunk, the least that a sampler is sent (chosen by size)")
    timeout: float = option(60.0, "seconds that any wait for a server may take without progress")
    allow_eviction: bool = option(False, "push more than a table holds: it drops its oldest items, or what it likes")
    allow_blocking: bool = option(False, "push into tables that take items only while somebody samples (queues)")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.timeout <= 0:
            raise UsageError(f"--timeout={self.timeout:g}: it must be more than 0 seconds")
        if self.chunk_length is not None and self.chunk_length < 1:
            raise UsageError(f"--chunk_length={self.chunk_length}: at least one frame is needed")
        for name in ("reverb", "table"):
            if not getattr(self, name):
                raise UsageError(f"--{name} is needed: " + _NEEDED[name])
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise UsageError(f"--{name}={','.join(getattr(self, name))}: one of them is named twice")


_NEEDED = {
    "reverb": "host:port of a Reverb server (`rlds-beam serve` starts one), or embedded",
    "table": "the name of the table to fill",
}


@dataclasses.dataclass(frozen=True)
class PushOptions(ReverbOptions, ItemOptions, FrameOptions, CheckOptions, SourceOptions):
    """What a push reads and writes."""

    input: str = option(
        dataclasses.MISSING, "a TFDS or EnvLogger dataset directory, shard files, or what convert wrote",
        positional=True,
    )  # fmt: skip
    _: dataclasses.KW_ONLY
    rejected: str | None = option(None, "directory to keep the original bytes of rejected records in")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportOptions(Options):
    """What counts as success, and what is printed."""

    max_rejected: int | float = option(
        0, "episodes that may be rejected before the exit code is 3: a count, or a fraction such as 0.01",
        parse=parse_max_rejected,
    )  # fmt: skip
    json: bool = option(False, "print the report as JSON instead of a summary")


DATAFLOW = ("dataflow", "DataflowRunner")
"""The runner of `DataflowOptions`, by our name and by Beam's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataflowOptions(Options):
    """Where on Google Cloud a job of --runner=dataflow runs; all its paths are gs:// paths."""

    project: str | None = option(None, "project that owns the job")
    region: str | None = option(None, "where its workers are (us-central1)")
    temp_location: str | None = option(None, "gs:// directory for temporary files", metavar="DIR")
    staging_location: str | None = option(
        None, "gs:// directory for what workers are given at their start (--temp_location)", metavar="DIR"
    )
    worker_container: str | None = option(
        None, "image of the workers, with rlds-beam in it (examples/dataflow)", metavar="IMAGE"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlinkOptions(Options):
    """Which Flink cluster a job of --runner=flink runs on, by the names of Beam's flags."""

    flink_master: str | None = option(None, "host:port of the JobManager's REST interface", metavar="ADDRESS")
    flink_job_server_jar: str | None = option(
        None, "Beam's job server for that Flink (fetched, where it is not there yet)", metavar="PATH"
    )
    parallelism: int | None = option(None, "task slots to work in (all that the cluster has)")
    environment_type: Literal["EXTERNAL", "DOCKER", "PROCESS"] | None = option(
        None, "how TaskManagers come by Python: a worker pool beside each (EXTERNAL), or as Beam's manual says"
    )
    environment_config: str | None = option(
        None, "host:port of the worker pool, as a TaskManager sees it (localhost:50000); of a container, the image"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.parallelism is not None and self.parallelism < 1:
            raise UsageError(f"--parallelism={self.parallelism}: at least one is needed")


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(FlinkOptions, DataflowOptions):
    """Where the job runs; Beam's own flags go behind --."""

    runner: str = option("local", "local, flink, dataflow, or the name of a Beam runner")
    workers: int | None = option(None, "worker processes on this machine (one per core, where the work pays for them)")
    beam_options: tuple[str, ...] = option((), "Beam's own flags, as a list", hidden=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.workers is not None and self.workers < 1:
            raise UsageError(f"--workers={self.workers}: at least one is needed")
        for group, runners in ((FlinkOptions, ("flink",)), (DataflowOptions, DATAFLOW)):
            for field in dataclasses.fields(group):
                if self.runner not in runners and getattr(self, field.name) is not None:
                    raise UsageError(f"--{field.name} is for --runner={runners[0]}, not --runner={self.runner}")
