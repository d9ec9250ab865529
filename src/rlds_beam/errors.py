"""The errors that a user may meet, each with the exit code that the command line gives it.

An error says what was wrong, where, and what to do about it, in that order.
"""


class RldsBeamError(Exception):
    """Base of every error raised on purpose by rlds-beam. Exit code 1: the pipeline failed."""

    exit_code = 1


class UsageError(RldsBeamError, ValueError):
    """The request cannot be carried out: an option, a path or a schema is wrong.

    Raised before any work is done (exit code 2).
    """

    exit_code = 2


class RejectedError(RldsBeamError):
    """More episodes were rejected than `max_rejected` allows (exit code 3)."""

    exit_code = 3


class NotVerifiedError(RldsBeamError):
    """Something was written, but what is there is not what was predicted (exit code 4)."""

    exit_code = 4


class FailedRuleError(RldsBeamError):
    """An episode broke a rule whose policy is `fail`: the first breach ends the job (exit code 1)."""
