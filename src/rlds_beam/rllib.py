"""Train RLlib from columns: `rlds_beam.exchange.rllib`, under its documented import path. Needs the extra `rllib`."""

from rlds_beam.exchange.rllib import ColumnsOfflineData, ColumnsPreLearner, offline_data

__all__ = ["ColumnsOfflineData", "ColumnsPreLearner", "offline_data"]
