"""Formats on disk and on the wire, one per module."""
