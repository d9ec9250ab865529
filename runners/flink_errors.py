"""What a job that failed on a Flink cluster means to the person at the terminal."""

from __future__ import annotations

import re

from rlds_beam.errors import RldsBeamError
from rlds_beam.runners import local
from rlds_beam.runners.flink_preflight import POOL, Master
from rlds_beam.runners.options import RunOptions

_STATE = re.compile(r"^Pipeline \S+ failed in state \w+: (java\.\S+Exception: )?")
"""What Beam says before the cause."""
_FRAME = re.compile(r"\s+(at \S+\(|\.\.\. \d+ more)|]$")
"""A line of a Java stack trace, or around one."""


def plain(error: Exception, options: RunOptions, master: Master) -> RldsBeamError:
    """The cause in one line, with what to do, without the Java stack trace.

    Args:
      error: Beam's.
      options: of the job.
      master: of the cluster; it is asked whether it still runs.
    """
    text = str(error)
    try:
        master.get("/overview")
    except OSError as unreachable:
        return RldsBeamError(
            f"the JobManager at {options.flink_master} does not answer any more ({unreachable}); what is finished is "
            "kept, run the same command to resume when it is up"
        )
    if "FlinkJobNotFoundException" in text:
        return RldsBeamError(
            f"the JobManager at {options.flink_master} was restarted, and has lost the job (with Flink's high "
            "availability it would not have lost it); what is finished is kept, run the same command to resume"
        )
    if "Traceback" in text:  # a worker's, and it ends with what it was about
        return local.plain(RuntimeError(_STATE.sub("", text)))
    if "StatusRuntimeException: UNAVAILABLE" in text:
        return RldsBeamError(
            f"a TaskManager found no SDK workers at {options.environment_config or POOL}: a worker pool has to run "
            "beside each of them (python -m rlds_beam.runners.worker_pool), and keep them running"
        )
    return local.plain(RuntimeError(_cause(_STATE.sub("", text))))


def _cause(text: str) -> str:
    """A Java error message without its stack trace: the innermost cause, where there are several."""
    lines = [line for line in text.splitlines() if not _FRAME.match(line)]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    return causes[-1] if causes else "\n".join(lines)
