"""Profiles: which array of an HDF5 or NPZ file is which field of an episode, as YAML."""
