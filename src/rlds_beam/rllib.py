"""Trains RLlib from columns. Public import path of `rlds_beam.formats.rllib.training`. Needs the extra `rllib`."""

from rlds_beam.formats.rllib.training import ColumnsOfflineData, ColumnsPreLearner, offline_data

__all__ = ["ColumnsOfflineData", "ColumnsPreLearner", "offline_data"]
