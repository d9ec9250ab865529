"""Where a job runs: the options."""

from __future__ import annotations

import dataclasses
from typing import ClassVar, Literal

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option

DATAFLOW = ("dataflow", "DataflowRunner")
"""The runner of `DataflowOptions`, by our name and by Beam's."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataflowOptions(Options):
    """Where on Google Cloud a job of --runner=dataflow runs; all its paths are gs:// paths."""

    shown_with: ClassVar[tuple[str, str]] = ("runner", "dataflow")
    project: str | None = option(None, "project that owns the job")
    region: str | None = option(None, "where its workers are (us-central1)")
    temp_location: str | None = option(None, "gs:// directory for temporary files", metavar="DIR")
    staging_location: str | None = option(
        None, "gs:// directory for what workers are given at their start (--temp_location)", metavar="DIR"
    )
    worker_container: str | None = option(
        None, "image of the workers, with rlds-beam in it (examples/dataflow)", metavar="NAME"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlinkOptions(Options):
    """Which Flink cluster a job of --runner=flink runs on, by the names of Beam's flags."""

    shown_with: ClassVar[tuple[str, str]] = ("runner", "flink")
    flink_master: str | None = option(None, "host:port of the JobManager's REST interface", metavar="HOST:PORT")
    flink_job_server_jar: str | None = option(
        None, "Beam's job server for that Flink (fetched, where it is not there yet)", metavar="FILE"
    )
    parallelism: int | None = option(None, "task slots to work in (all that the cluster has)", least=1)
    environment_type: Literal["EXTERNAL", "DOCKER", "PROCESS"] | None = option(
        None, "how TaskManagers get Python: a worker pool beside each (EXTERNAL), or as in Beam's manual"
    )
    environment_config: str | None = option(
        None, "host:port of the worker pool, as a TaskManager sees it (localhost:50000); of a container, the image"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(FlinkOptions, DataflowOptions):
    """Where the job runs; Beam's own flags go after --."""

    runner: str = option(
        "local", "local, flink, dataflow (--runner=flink --help lists its options), or a Beam runner", chooses=True
    )
    workers: int | None = option(None, "worker processes here (one per core, if that pays)", least=1)
    beam_options: tuple[str, ...] = option((), "Beam's own flags, as a list", hidden=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        for flag in self.beam_options:
            if flag.startswith("--s3_"):
                raise UsageError(
                    f"{flag.partition('=')[0]}: s3:// paths are read with boto3's settings: set AWS_PROFILE, or "
                    "AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ... for the command and its workers"
                )
        for group, runners in ((FlinkOptions, ("flink",)), (DataflowOptions, DATAFLOW)):
            for field in dataclasses.fields(group):
                if self.runner not in runners and getattr(self, field.name) is not None:
                    raise UsageError(f"--{field.name} is for --runner={runners[0]}, not --runner={self.runner}")
