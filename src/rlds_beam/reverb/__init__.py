"""Writes to Reverb without its client library.

Speaks the protocol over grpcio (`reverb/protocol/inserts.py`, `reverb/protocol/info.py`), so it needs no TensorFlow,
and it controls what the client library does not: keys, deadlines, and verification at the end.
"""
