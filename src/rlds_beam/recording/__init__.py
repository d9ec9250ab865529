"""Recording: behaviour policies rolled out in environments, into RLDS, each action with its propensity."""
