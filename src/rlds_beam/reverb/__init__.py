"""Writes to Reverb without its client library.

Speaks the protocol over grpcio (`inserts`, `connection`), so it needs no TensorFlow,
and it controls what the client library does not: keys, deadlines, and verification at the end.
"""
