"""Options for where a job runs."""

from __future__ import annotations

import dataclasses
from typing import Literal

from rlds_beam.errors import UsageError
from rlds_beam.options import Options, option

DATAFLOW = ("dataflow", "DataflowRunner")
"""The Dataflow runner: our name and Beam's."""


_FLAGS = "give the flags of the runner after --"
_INSTEAD = {
    **dict.fromkeys(DATAFLOW, "use -- --num_workers=N or --max_num_workers=N"),
    "flink": "use --parallelism on Flink, which counts slots of all TaskManagers",
}
"""What to use instead of --workers, by runner."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataflowOptions(Options):
    """Dataflow (--runner=dataflow); all paths must be gs:// paths."""

    project: str | None = option(None, "Google Cloud project of the job")
    region: str | None = option(None, "region of the workers, e.g. us-central1")
    staging_location: str | None = option(
        None, "gs:// directory for files staged to the workers (default: --temp_location)", metavar="DIR"
    )
    worker_container: str | None = option(
        None, "worker image that contains rlds-beam (see examples/dataflow)", metavar="NAME"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlinkOptions(Options):
    """Flink (--runner=flink); the names are those of Beam's flags."""

    flink_master: str | None = option(None, "host:port of the JobManager's REST interface", metavar="HOST:PORT")
    flink_job_server_jar: str | None = option(
        None, "Beam's job server for that Flink version (default: downloaded if missing)", metavar="FILE"
    )
    parallelism: int | None = option(None, "task slots to use (default: all of the cluster)", least=1)
    environment_type: Literal["EXTERNAL", "DOCKER", "PROCESS"] | None = option(
        None, "how TaskManagers run Python: EXTERNAL is a worker pool next to each; the others as in Beam's manual"
    )
    environment_config: str | None = option(
        None, "host:port of the worker pool as seen by a TaskManager (localhost:50000), or the container image"
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(FlinkOptions, DataflowOptions):
    """Where to run the job; Beam's own flags go after --."""

    runner: str = option(
        "local",
        "local, or a Beam runner: direct, prism, flink, dataflow, module:Class",
    )
    workers: int | None = option(None, "local worker processes (default: one per core if faster)", least=1)
    temp_location: str | None = option(
        None, "directory for temporary files that this command and all of Beam's workers can use", metavar="DIR"
    )
    beam_options: tuple[str, ...] = ()  # Beam's own flags

    def __post_init__(self) -> None:
        super().__post_init__()
        for flag in self.beam_options:
            if flag.startswith("--s3_"):
                raise UsageError(
                    f"{flag.partition('=')[0]} has no effect: set AWS_PROFILE, or "
                    "AWS_ACCESS_KEY_ID, AWS_ENDPOINT_URL, ... for the command and its workers"
                )
        given = [*self.beam_options, *([] if self.temp_location is None else ["--temp_location"])]
        if self.runner == "local" and given:
            raise UsageError(f"{given[0]} is a flag of Beam, which --runner=local does not use")
        if self.runner != "local" and self.workers is not None:
            raise UsageError(f"--workers needs --runner=local; {_INSTEAD.get(self.runner, _FLAGS)}")
        for group, runners in ((FlinkOptions, ("flink",)), (DataflowOptions, DATAFLOW)):
            for field in dataclasses.fields(group):
                if self.runner not in runners and getattr(self, field.name) is not None:
                    raise UsageError(f"--{field.name} needs --runner={runners[0]}, not --runner={self.runner}")
