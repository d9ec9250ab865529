"""Sources and outputs for each dataset format, and `Format`, which describes one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlds_beam import lazy

if TYPE_CHECKING:
    from rlds_beam.formats.registry import Format as Format

__getattr__, __dir__, __all__ = lazy.exports(__name__)
