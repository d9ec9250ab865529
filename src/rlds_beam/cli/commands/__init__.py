"""The commands that run no pipeline, one per module: a frozen config, and a function that does it."""
