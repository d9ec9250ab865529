"""The exit codes of the commands: for their help, and for the reference pages."""

from __future__ import annotations

EXIT_CODES = {
    0: "success",
    1: "the job failed; nothing or only part of the output was written",
    2: "wrong usage, or the input or output cannot be used; nothing was written",
    3: "finished, but too much was rejected (--max_rejected), or there are no items",
    4: "the result is not what was predicted, or the input changed meanwhile",
}
"""Exit code -> what it means for most commands. A line of the help has room for 75 characters."""

SIGNALS = {
    130: "interrupted by Ctrl-C or SIGTERM",
    137: "killed 10 s after Ctrl-C or SIGTERM, because a library did not return",
    141: "the program that reads the output closed it, for example head",
    142: "a library read one file for 60 s; RLDS_BEAM_READ_SECONDS changes that",
}
"""Exit codes of a command that was stopped. `serve` and `browse` end with 0 when they are interrupted."""

_CHECKS = {
    1: "the job failed",
    3: "finished, but too much was rejected (--max_rejected)",
    4: "the input changed meanwhile, or the counts do not add up",
}
_RESUMES = {1: "the job failed; the same command resumes it"}

_OWN: dict[str, dict[int, str]] = {
    "example": {1: "the dataset could not be written"},
    "inspect": {1: "the dataset could not be read"},
    "validate": _CHECKS,
    "check": _CHECKS,
    "report": {1: "the job failed, or the report could not be written"},
    "stats": {**_CHECKS, 3: "finished, but too much was rejected, or no episode was accepted"},
    "convert": _RESUMES,
    "record": _RESUMES,
    "upload": {
        1: "the upload failed; the same command resumes it",
        2: "wrong usage, or the output or the repository cannot be used",
        4: "a file of the output differs from its manifest",
    },
    "push": {1: "the job failed; with --writer=stream, the same command resumes it"},
    "serve": {
        0: "stopped by Ctrl-C or SIGTERM",
        1: "the server failed",
        4: "the checkpoint could not be verified",
    },
    "show": {1: "the dataset could not be read, or the file could not be written"},
    "browse": {
        0: "stopped by Ctrl-C or SIGTERM",
        1: "the server failed",
        2: "wrong usage, or a dataset cannot be opened",
    },
    "doctor": {0: "no problems found", 1: "at least one problem found", 2: "wrong usage"},
}
"""Command -> what its exit codes mean, if it is not what they mean for the others."""

_CODES = {
    "example": (0, 1, 2),
    "inspect": (0, 1, 2),
    "show": (0, 1, 2),
    "report": (0, 1, 2, 4),
    "serve": (0, 1, 2, 4),
    "upload": (0, 1, 2, 4),
    "browse": (0, 1, 2),
    "doctor": (0, 1, 2),
}
"""Command -> the codes that it can end with, if not all."""


def exit_codes(command: str) -> dict[int, str]:
    """The exit codes that a command can end with, and what each means."""
    meanings = EXIT_CODES | _OWN.get(command, {})
    return {code: meanings[code] for code in _CODES.get(command, EXIT_CODES)}
