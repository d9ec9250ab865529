"""Train an agent on a Reverb table with TF-Agents and Reverb; only the spec comes from rlds-beam.

Any server whose table holds pairs will do. In one terminal, then in another two:

    rlds-beam serve --like=demo_data/pairs --tables=replay --port=8000
    rlds-beam push demo_data/pairs --reverb=127.0.0.1:8000 --table=replay
    python examples/train.py --reverb=127.0.0.1:8000 --table=replay --like=demo_data/pairs

The agent is behavioral cloning: it learns to imitate the recorded actions. Exit code 1: its loss did not fall.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import os
import statistics
import sys
from collections.abc import Iterator, Sequence
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

FRAMES = 2
"""Frames in an item: a pair."""

WINDOW = 10
"""Steps over which the loss is averaged, at the beginning and at the end: one batch is noisy."""

WAIT_SECONDS = 20
"""Seconds to wait for the server, and for items in its table."""


def main(arguments: Sequence[str] | None = None) -> None:
    from rlds_beam import RldsBeamError

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reverb", required=True, help="host:port of a server")
    parser.add_argument("--table", required=True, help="a table of pairs")
    parser.add_argument("--like", required=True, help="what was pushed: a dataset, or what convert wrote")
    parser.add_argument("--steps", type=int, default=50, help="training steps")
    parser.add_argument("--batch_size", type=int, default=256, help="items in a batch")
    parser.add_argument("--learning_rate", type=float, default=3e-3)
    flags = parser.parse_args(arguments)
    if flags.steps < 2 * WINDOW:
        parser.error(f"--steps={flags.steps}: the first {WINDOW} are compared with the last {WINDOW}")
    try:
        import_quietly()
        check_table(flags.reverb, flags.table)
        spec = trajectory_spec(flags.like)
    except RldsBeamError as error:
        parser.exit(error.exit_code, f"train.py: {error}\n")
    batches = sample(flags.reverb, flags.table, spec, flags.batch_size)
    check_batch(next_batch(batches), spec, flags.batch_size)
    check_falling(train(new_agent(spec, flags.learning_rate), batches, flags.steps))


def check_table(address: str, table: str) -> None:
    """Raises RldsBeamError if there is nothing to sample: TF-Agents would wait for it, and not say why."""
    import reverb

    from rlds_beam import RldsBeamError, UsageError

    try:
        tables = reverb.Client(address).server_info(timeout=WAIT_SECONDS)
    except (reverb.errors.ReverbError, RuntimeError) as error:
        raise RldsBeamError(f"{address}: no Reverb server answers there ({error})") from error
    if table not in tables:
        raise UsageError(f"{address} has no table {table}; it has {', '.join(tables)}")
    if not tables[table].current_size:
        raise UsageError(f"table {table} of {address} is empty; fill it with rlds-beam push")
    say(f"{address} has {tables[table].current_size:,} items in table {table}")


def import_quietly() -> None:
    """Imports TF-Agents without the deprecation warnings of its dependencies."""
    import absl.logging

    with contextlib.redirect_stderr(io.StringIO()):
        importlib.import_module("tf_agents.utils.example_encoding_dataset")
    absl.logging.set_verbosity(absl.logging.ERROR)


def trajectory_spec(like: str) -> Any:
    """What a frame in the table is, as a TF-Agents `Trajectory` of `tf.TensorSpec`."""
    from rlds_beam import FrameOptions
    from rlds_beam.cli.commands.serve import read_spec

    return read_spec(like, FrameOptions()).to_tf(per_frame=True)


def sample(address: str, table: str, spec: Any, batch_size: int) -> Iterator[Any]:
    """Batches without end, each a `Trajectory` of leaves [B, 2, ...]: what `agent.train` takes."""
    from tf_agents.replay_buffers.reverb_replay_buffer import ReverbReplayBuffer

    buffer = ReverbReplayBuffer(
        spec, table, sequence_length=FRAMES, server_address=address, rate_limiter_timeout_ms=WAIT_SECONDS * 1000
    )
    dataset = buffer.as_dataset(sample_batch_size=batch_size, num_steps=FRAMES).prefetch(2)
    return (experience for experience, _ in dataset)


def next_batch(batches: Iterator[Any]) -> Any:
    """The next batch; ends the program if the table gives none, or other items than pairs of the spec."""
    import tensorflow as tf

    try:
        for batch in batches:
            return batch
    except tf.errors.OpError as error:
        sys.exit(f"train.py: the table cannot be sampled as pairs of what --like names: {error.message}")
    sys.exit(f"train.py: no batch within {WAIT_SECONDS} s; does another client empty the table?")


def check_batch(batch: Any, spec: Any, batch_size: int) -> None:
    """Prints the leaves of a batch; ends the program if they are not those of the spec."""
    import tensorflow as tf

    tf.nest.assert_same_structure(batch, spec)
    say(f"a batch of {batch_size} items, {FRAMES} frames each:")
    for (path, leaf), expected in zip(leaves(batch), tf.nest.flatten(spec), strict=True):
        say(f"  {path:<24} {leaf.dtype.name:<8} {tuple(leaf.shape)}")
        if (leaf.dtype, leaf.shape) != (expected.dtype, (batch_size, FRAMES, *expected.shape)):
            sys.exit(f"train.py: {path} is not of the spec of the table, {expected}")


def leaves(nest: Any) -> list[tuple[str, Any]]:
    """(path, tensor) in the order in which `tf.nest` flattens them."""
    from tensorflow.python.util import nest as tf_nest

    return [("/".join(map(str, path)), leaf) for path, leaf in tf_nest.flatten_with_tuple_paths(nest)]


def new_agent(spec: Any, learning_rate: float) -> Any:
    """Behavioral cloning: two small layers from the observation to the action; the same weights on every run."""
    import tensorflow as tf
    from tf_agents.agents.behavioral_cloning.behavioral_cloning_agent import BehavioralCloningAgent
    from tf_agents.networks import sequential
    from tf_agents.specs.tensor_spec import BoundedTensorSpec
    from tf_agents.trajectories.time_step import time_step_spec

    action = tf.nest.flatten(spec.action)
    if len(action) != 1 or not action[0].dtype.is_floating or action[0].shape.rank != 1:
        sys.exit(f"train.py: this agent learns one vector of real numbers as its action, not {spec.action}")
    tf.keras.utils.set_random_seed(0)

    def flat(observation: Any) -> Any:
        """All leaves of an observation side by side, float32 [..., n]."""
        columns = []
        for leaf, like in zip(tf.nest.flatten(observation), tf.nest.flatten(spec.observation), strict=True):
            outer = tf.shape(leaf)[: leaf.shape.rank - like.shape.rank]
            columns.append(tf.reshape(tf.cast(leaf, tf.float32), tf.concat([outer, [like.shape.num_elements()]], 0)))
        return tf.concat(columns, -1)

    dense = tf.keras.layers.Dense
    agent = BehavioralCloningAgent(
        time_step_spec(spec.observation),
        tf.nest.map_structure(BoundedTensorSpec.from_spec, spec.action),
        cloning_network=sequential.Sequential(
            [tf.keras.layers.Lambda(flat), dense(128, "relu"), dense(128, "relu"), dense(action[0].shape[0])],
            input_spec=spec.observation,
        ),
        optimizer=tf.keras.optimizers.Adam(learning_rate),
        num_outer_dims=2,
    )
    agent.initialize()
    return agent


def train(agent: Any, batches: Iterator[Any], steps: int) -> list[float]:
    """The loss of each step: the mean squared difference between the agent's action and the recorded one."""
    import tensorflow as tf
    from tf_agents.utils import common

    step = common.function(agent.train)  # as one graph
    losses = []
    for number in range(1, steps + 1):
        experience = next_batch(batches)
        # An episode's last frame is its boundary: no action was taken there, so none must be learned.
        taken = 1.0 - tf.cast(experience.is_boundary(), tf.float32)
        losses.append(float(step(experience, weights=taken).loss))
        if number == 1 or number % WINDOW == 0:
            say(f"step {number:4}   loss {losses[-1]:.4f}")
    return losses


def check_falling(losses: Sequence[float]) -> None:
    """Ends the program if the loss is not lower at the end than at the beginning."""
    first, last = statistics.mean(losses[:WINDOW]), statistics.mean(losses[-WINDOW:])
    figures = f"{first:.4f} over the first {WINDOW} steps, {last:.4f} over the last {WINDOW}"
    if not last < first:
        sys.exit(f"train.py: the agent learned nothing: loss {figures}")
    say(f"It learns: loss {figures}.")


def say(text: str) -> None:
    print(f"  {text}", flush=True)


if __name__ == "__main__":
    main()
