"""The version of rlds-beam."""

__version__ = "0.1.0"
