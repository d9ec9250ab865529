"""Sources and outputs for each dataset format, and `Format`, which describes one."""

from rlds_beam.formats.registry import Format

__all__ = ["Format"]
