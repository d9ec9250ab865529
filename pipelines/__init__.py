"""The jobs: one file each, a frozen config dataclass, `define_pipeline(root, config)`, and its command."""
