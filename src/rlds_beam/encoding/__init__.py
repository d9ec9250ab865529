"""Bytes on disk and on the wire, one format a module."""
