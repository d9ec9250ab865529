"""Reverb servers of our own."""

from rlds_beam import lazy

# Documented under this path.
__getattr__, __dir__ = lazy.exports(
    __name__, dict.fromkeys(("EmbeddedServer", "verify_checkpoint"), "rlds_beam.reverb.serving.server")
)
