"""Translates errors of jobs on a Flink cluster for the person at the terminal."""

from __future__ import annotations

import re

from rlds_beam.errors import RldsBeamError
from rlds_beam.runners import local
from rlds_beam.runners.flink_preflight import POOL, Master
from rlds_beam.runners.options import RunOptions

_STATE = re.compile(r"^Pipeline \S+ failed in state \w+: (java\.\S+Exception: )?")
"""Beam's words before the cause."""
_FRAME = re.compile(r"\s+(at \S+\(|\.\.\. \d+ more)|]$")
"""A line of a Java stack trace, or around one."""


def plain(error: Exception, options: RunOptions, master: Master) -> RldsBeamError:
    """The cause and the remedy in one line, without the Java stack trace.

    Args:
      error: Beam's error.
      options: the job's options.
      master: the cluster's master, which is asked whether it is still running.
    """
    text = str(error)
    try:
        master.get("/overview")
    except OSError as unreachable:
        return RldsBeamError(
            f"the JobManager at {options.flink_master} no longer answers ({unreachable}); finished work is kept: once "
            "it is up, run the same command to resume"
        )
    if "FlinkJobNotFoundException" in text:
        return RldsBeamError(
            f"the JobManager at {options.flink_master} was restarted and lost the job (Flink's high availability would "
            "keep it); finished work is kept: run the same command to resume"
        )
    if "Traceback" in text:  # a worker's traceback, which ends with the cause
        return local.plain(RuntimeError(_STATE.sub("", text)))
    if "StatusRuntimeException: UNAVAILABLE" in text:
        return RldsBeamError(
            f"a TaskManager found no SDK workers at {options.environment_config or POOL}: start a worker pool next to "
            "each TaskManager (python -m rlds_beam.runners.worker_pool) and keep it running"
        )
    return local.plain(RuntimeError(_cause(_STATE.sub("", text))))


def _cause(text: str) -> str:
    """A Java error message without its stack trace: the innermost cause, if there are several."""
    lines = [line for line in text.splitlines() if not _FRAME.match(line)]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return causes[-1] if causes else "\n".join(lines)
