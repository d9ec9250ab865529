"""Reverb servers in separate processes, with tables that match a dataset."""

from typing import TYPE_CHECKING

from rlds_beam import lazy

if TYPE_CHECKING:
    from rlds_beam.reverb.serving.served_tables import ServedTable as ServedTable
    from rlds_beam.reverb.serving.server import EmbeddedServer as EmbeddedServer
    from rlds_beam.reverb.serving.server import verify_checkpoint as verify_checkpoint

__getattr__, __dir__, __all__ = lazy.exports(__name__)
