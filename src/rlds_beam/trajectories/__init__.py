"""TF-Agents trajectories: frames, items, their spec, and the records that hold them."""

from rlds_beam import lazy

# Documented under this path.
__getattr__, __dir__ = lazy.exports(
    __name__, {"decoder": "rlds_beam.output.loading", "load_trajectories": "rlds_beam.output.loading"}
)
