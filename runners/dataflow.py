"""Runs jobs on Google Cloud Dataflow: checks the requirements, then submits with Beam's own runner."""

from __future__ import annotations

import importlib.util
import re
import time
from typing import Any

from rlds_beam import storage
from rlds_beam.errors import RldsBeamError, UsageError, missing_extra
from rlds_beam.runners.base import RunOptions
from rlds_beam.runners.beam import BeamRunner, read_metrics
from rlds_beam.worker_status import Done

_COPY = "copy it to a bucket (gcloud storage cp -r) and give its gs:// path"
_PATHS = {
    "input": ("", _COPY),
    "features": ("--features=", _COPY),
    "output": ("", "give a gs:// path"),
    "rejected": ("--rejected=", "give a gs:// path"),
}
"""The config fields whose paths workers open. (This process writes the report.)"""

_DIRECTORY = re.compile(r"gs://[a-z0-9][-_a-z0-9.]+[a-z0-9]/[^\n\r]+")

_THREADS = 2
"""Threads per worker process by default: one waits for the bucket while the other computes."""

_SUPPLIES = ("setup_file", "extra_packages", "requirements_file", "prebuild_sdk_container_engine")
"""Beam's flags that install a package on workers whose image does not contain it."""


def check(options: RunOptions) -> None:
    """Checks that a job can run on Dataflow, without network or file access.

    Raises:
      UsageError: something is missing or cannot work on a worker; the message says what to do.
    """
    for name, (flag, what_to_do) in _PATHS.items():
        for path in filter(None, (getattr(options, name, None) or "").split(",")):
            if storage.scheme(path) != "gs":
                raise _refuse(f"{flag}{path}", f"is a path on this machine, which workers cannot read; {what_to_do}")
    for server in getattr(options, "reverb", ()):
        if server == "embedded" or server.startswith(("localhost:", "127.")):
            raise _refuse(
                f"--reverb={server}",
                "is a server on this machine, which workers cannot reach; start `rlds-beam serve --host=0.0.0.0` on a "
                "machine in their network, and give its address there",
            )
    flags = _parse(options)
    if not flags.get("project"):
        raise _refuse("--project", "is missing: name the Google Cloud project of the job")
    if not flags.get("region"):
        raise _refuse("--region", "is missing: name a region, best that of the buckets, for example us-central1")
    for name in ("temp_location", "staging_location"):
        # If Beam cannot use the given location, it silently creates another bucket.
        if not _DIRECTORY.fullmatch(flags.get(name) or ""):
            raise _refuse(
                f"--{name}", "is missing: give a gs://BUCKET/DIRECTORY that the job and its workers can write to"
            )
    if not flags.get("sdk_container_image") and not any(flags.get(name) for name in _SUPPLIES):
        raise _refuse(
            "--worker_container",
            "is missing: name an image that contains rlds-beam (examples/dataflow shows how to build it) or, to try a "
            "checkout, add -- --setup_file=./setup.py",
        )
    try:
        is_installed = importlib.util.find_spec("google.cloud.dataflow") is not None
    except ModuleNotFoundError:  # not even google.cloud is installed
        is_installed = False
    if not is_installed:  # our extra, because apache-beam[gcp] cannot be installed with TensorFlow 2.15
        raise missing_extra("gcp", "--runner=dataflow needs google.cloud.dataflow")


def _refuse(what: str, why: str) -> UsageError:
    return UsageError(f"--runner=dataflow: {what} {why}")


def beam_flags(options: RunOptions) -> list[str]:
    """The job as Beam flags: from our options, then our defaults, then those given after `--`, which win."""
    job = type(options).__name__.removesuffix("Config").lower()
    ours = {
        "project": options.project,
        "region": options.region,
        "temp_location": options.temp_location or options.staging_location,
        "staging_location": options.staging_location or options.temp_location,
        "sdk_container_image": options.worker_container,
        # The image contains Beam, so nothing is installed when a worker starts.
        "sdk_location": options.worker_container and "container",
        "number_of_worker_harness_threads": str(_THREADS),
        "job_name": f"rlds-beam-{job}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}",
    }
    flags = [f"--{name}={value}" for name, value in ours.items() if value]
    # Workers import all code from rlds-beam, so the main session is not needed.
    return [*flags, "--no_save_main_session", *options.beam_options]


def _parse(options: RunOptions) -> dict[str, Any]:
    from apache_beam.options.pipeline_options import PipelineOptions

    parsed: dict[str, Any] = PipelineOptions(beam_flags(options)).get_all_options()
    return parsed


class DataflowRunner(BeamRunner):
    """Submits a job to Dataflow and waits for it; Ctrl-C cancels it."""

    tick_seconds = 15.0

    def check(self) -> None:
        check(self.options)

    def flags(self) -> list[str]:
        return beam_flags(self.options)

    def place(self) -> str | None:
        if self.result is None:
            return None
        flags, job = _parse(self.options), self.result.job_id()
        url = f"https://console.cloud.google.com/dataflow/jobs/{flags['region']}/{job}?project={flags['project']}"
        return f"Dataflow job {job}, {url}"

    def done(self) -> Done | None:
        if self.result is None:
            return None
        metrics = read_metrics(self.result)
        return Done(**{name: metrics.get(name, 0) for name in Done._fields})

    def clean_up(self) -> None:
        # An interrupted job would otherwise continue next to the one that a rerun of the command starts.
        if self.result is not None and not self.result.is_in_terminal_state():
            self.result.cancel()

    def plain(self, error: Exception) -> RldsBeamError:
        if self.result is not None:
            return super().plain(error)
        text = " ".join(f"{type(error).__name__}: {error}".split())
        if "DefaultCredentialsError" in text or "RefreshError" in text:
            text += "; log in with gcloud auth application-default login"
        return UsageError(f"the job could not be submitted to Dataflow: {text}")
