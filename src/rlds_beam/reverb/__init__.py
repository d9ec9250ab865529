"""Reverb without its client: connections, tables, and items on their way into them.

The protocol is spoken over grpcio (`reverb/protocol/inserts.py`, `reverb/protocol/info.py`), so nothing here needs
TensorFlow, and what the client library leaves open is decided here: keys, deadlines, what is verified at the end.
"""
