"""The errors that users see, each with its exit code, and the violations of an episode.

An error says what is wrong, where, and what to do about it, in that order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import os
import sys
from collections.abc import Callable, Iterator

from rlds_beam.text import shorten, without_secrets


class RldsBeamError(Exception):
    """Base of every error that rlds-beam raises on purpose. Exit code 1: the pipeline failed.

    Args:
      lines: the lines of the message, which is shown without the secrets in addresses and flags.
    """

    exit_code = 1

    def __str__(self) -> str:
        return without_secrets("\n".join(map(str, self.args)))


class UsageError(RldsBeamError, ValueError):
    """The request cannot be carried out: an option, a path, or a schema is wrong.

    Raised before any work is done (exit code 2).
    """

    exit_code = 2


class NeedsMappingError(UsageError):
    """The format needs the user to say which field is which; `inspect` prints the proposal of such a file.

    Attributes:
      propose: looks at the data, and returns a proposal to edit.
    """

    def __init__(self, *lines: str, propose: Callable[[], str]):
        super().__init__(*lines)
        self.propose = propose


class MissingExtraError(UsageError, ImportError):
    """A package of an optional extra is not installed; the message names the extra."""


_TENSORFLOW = ("tf", "agents", "envlogger", "demo")  # these need TensorFlow 2.15
_LINUX = ("agents", "envlogger", "demo")  # their packages have wheels for Linux only; elsewhere they install the others


def missing_extra(extra: str, what: str) -> MissingExtraError:
    """The error for something that needs an extra.

    Args:
      extra: the extra to install.
      what: the start of the message: what needs which package.
    """
    hint = ""
    if extra in _TENSORFLOW and sys.version_info >= (3, 12):
        python = ".".join(map(str, sys.version_info[:2]))
        hint = f", on Python 3.11 (this is {python}): TensorFlow 2.15 supports no newer version"
    elif extra in _LINUX and sys.platform != "linux":
        hint = ", on Linux: Reverb and EnvLogger support no other system"
    return MissingExtraError(f"{what}: pip install 'rlds-beam[{extra}]'{hint}")


@contextlib.contextmanager
def needs(extra: str, what: str) -> Iterator[None]:
    """Wraps imports of optional packages: if one fails, the error names the extra to install.

        with needs("agents", "load_trajectories needs TensorFlow and TF-Agents"):
            import tensorflow as tf

    Raises:
      MissingExtraError: an import failed.
    """
    try:
        yield
    except ImportError as error:
        raise missing_extra(extra, f"{what} ({error})") from error


_DISK = {
    errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.EMFILE, errno.ENFILE, errno.EFBIG,
    errno.EIO,
}  # fmt: skip


class DiskError(RldsBeamError):
    """A file cannot be written: the disk is full or read-only, or access is denied (exit code 1)."""

    @classmethod
    def from_errno(cls, number: int, path: str) -> DiskError | None:
        """The error for an `errno`; None if it is not about a disk."""
        return cls(f"{path} cannot be written: {os.strerror(number)}") if number in _DISK else None


class OutOfMemoryError(RldsBeamError, MemoryError):
    """This machine, or a limit of this process, has too little memory for the work (exit code 1)."""

    @classmethod
    def from_detail(cls, detail: object) -> OutOfMemoryError:
        """The error for a MemoryError's text, which may be empty."""
        said = f" ({shorten(detail)})" if str(detail).strip() else ""
        return cls(f"there is not enough memory{said}: use fewer --workers, or a machine with more memory")


class NotVerifiedError(RldsBeamError):
    """The output differs from the prediction (exit code 4)."""

    exit_code = 4


class BucketError(RldsBeamError):
    """An object store failed, after retries (exit code 1).

    Not an OSError, which file readers treat as damage: a lost connection damages no record.
    """


class BucketAccessError(BucketError):
    """A bucket cannot be used: no credentials, no such bucket, access denied, or no answer (exit code 2)."""

    exit_code = 2


class FailedRuleError(RldsBeamError):
    """An episode broke a rule whose policy is `fail`: the first violation ends the job (exit code 1)."""


@dataclasses.dataclass(frozen=True)
class Violation:
    """A rule that an episode breaks, and where.

    Attributes:
      rule: the rule's id, for example `missing_is_last`.
      detail: what is wrong: `NaN at step 17`.
      field: the step field, if the rule is about one.
      step: the index of the first bad step, if the rule is about steps.
    """

    rule: str
    detail: str
    field: str | None = None
    step: int | None = None

    def __str__(self) -> str:
        where = f" in {self.field}" if self.field else ""
        return f"{self.rule}{where}: {self.detail}"


class BadEpisode(Exception):
    """An episode cannot be used; holds its violations."""

    def __init__(self, *violations: Violation):
        super().__init__("; ".join(map(str, violations)))
        self.violations = violations
