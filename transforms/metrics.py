"""The one namespace of every Beam metric of this package."""

METRICS_NAMESPACE = "rlds_beam"
