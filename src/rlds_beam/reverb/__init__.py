"""Reverb without its client: connections, tables, and items on their way into them.

The protocol is spoken over grpcio (`formats/reverb_stream.py`, `formats/reverb_info.py`), so nothing here needs
TensorFlow, and what the client library leaves open is decided here: keys, deadlines, what is verified at the end.
"""
