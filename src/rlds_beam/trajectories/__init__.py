"""TF-Agents trajectories: frames, items, their spec, and records."""
