"""RLlib's MARWIL or BC, trained on our columns and on recorded episodes by RLlib's own path. Prints JSON.

    python benchmarks/peers/rllib_training.py [--algorithm marwil|bc] [--recurrent] [--episodes N] [--iterations N]

Runs in the environment of `make test-peers` (.venv-peers-rllib). Both train the same model on the same episodes with
equal batches. RLlib's own path reads episodes (`input_read_episodes`). By default, MARWIL runs the connectors again for
each batch; BC keeps their output in memory once it has seen all data.

RLlib reads ahead and starts reading again at the end of an epoch, so several epochs are measured: an iteration that
takes a batch from the queue says little.
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import msgpack
import msgpack_numpy
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import ray
import rllib_connectors
import torch
from ray.rllib.algorithms.bc import BCConfig
from ray.rllib.algorithms.marwil import MARWILConfig
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

import rlds_beam
from rlds_beam import connectors as ours
from rlds_beam.rllib import offline_data
from rlds_beam.testing import write_dataset

ROWS, LENGTH = 500, 200
READ = 4
"""Episodes that RLlib reads at a time and turns into a batch."""


def write_episodes(path: Path, episodes: list[Any]) -> str:
    """Writes episodes as RLlib's recorders do: one row each."""
    items = [msgpack.packb(episode.get_state(), default=msgpack_numpy.encode) for episode in episodes]
    path.mkdir()
    for i in range(4):
        pyarrow.parquet.write_table(pa.table({"item": pa.array(items[i::4], pa.binary())}), path / f"{i}.parquet")
    return str(path)


def write_columns(path: Path, episodes: list[Any], recurrent: bool) -> str:
    """Writes RLDS and converts it to columns."""
    pieces: list[Any] = [ours.GeneralAdvantageEstimation(lambda_=1.0), *rllib_connectors.OUR_PIECES]
    episodes = [e.with_columns({"vf_preds": e.steps["reward"] * 0}) for e in episodes]
    if not recurrent:
        sequences = (ours.AddTimeDimToBatchAndZeroPad, ours.AddStatesFromEpisodesToBatch)
        pieces = [piece for piece in pieces if not isinstance(piece, sequences)]
    dataset = write_dataset(path / "rlds", episodes, shards=4)
    rlds_beam.convert(dataset, path / "columns", to="columns", format="parquet", connectors=pieces, workers=1)
    return str(path / "columns")


def configured(algorithm: str, recurrent: bool) -> Any:
    model = DefaultModelConfig(
        fcnet_hiddens=[64, 64],
        use_lstm=recurrent,
        lstm_cell_size=rllib_connectors.STATE,
        max_seq_len=rllib_connectors.MAX_SEQ_LEN,
    )
    return (
        (MARWILConfig() if algorithm == "marwil" else BCConfig())
        .environment(observation_space=rllib_connectors.OBSERVATION, action_space=rllib_connectors.ACTION)
        .learners(num_learners=0)
        .rl_module(model_config=model)
        .training(train_batch_size_per_learner=ROWS // rllib_connectors.MAX_SEQ_LEN if recurrent else ROWS)
        .debugging(seed=0, log_level="ERROR")
    )


def train(config: Any, iterations: int) -> dict[str, float]:
    """Seconds until the first iteration is done, and the mean of the later ones."""
    began = time.perf_counter()
    algorithm = config.build_algo()
    algorithm.train()
    warm = time.perf_counter()
    for _ in range(iterations):
        loss = float(algorithm.train()["learners"]["default_policy"]["total_loss"])
    seconds = time.perf_counter() - warm
    algorithm.stop()
    return {"start_up": warm - began, "seconds_per_iteration": seconds / iterations, "finite": bool(np.isfinite(loss))}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--algorithm", default="marwil", choices=("marwil", "bc"))
    parser.add_argument("--recurrent", action="store_true")
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--epochs", type=int, default=3)
    flags = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)  # the model is small, and RLlib's readers need a core
    # Logical CPUs: with two, BC on RLlib's own path waits for a reader that Ray never starts.
    ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
    recorded, made = rllib_connectors.episodes(flags.episodes, LENGTH, one_layer=True)
    with tempfile.TemporaryDirectory() as directory:
        own = configured(flags.algorithm, flags.recurrent).offline_data(
            input_=[write_episodes(Path(directory, "episodes"), recorded)],
            input_read_episodes=True,
            input_read_batch_size=READ,
            prelearner_use_recorded_module_states=True,
            dataset_num_iters_per_learner=1,
        )
        columns = write_columns(Path(directory), made, flags.recurrent)
        fed = configured(flags.algorithm, flags.recurrent).offline_data(**offline_data(columns))
        iterations = flags.epochs * -(-flags.episodes // READ)  # epochs of RLlib's
        results = {"ours": train(fed, iterations), "rllib": train(own, iterations)}
    ray.shutdown()
    print(json.dumps(results))


if __name__ == "__main__":
    main()
