"""Runs TF-Agents' own tests of `rlds_to_reverb` against ours.

python tests/support/upstream_rlds_to_reverb.py
"""

import runpy
import sys

from tf_agents import replay_buffers

from rlds_beam.drop_in import rlds_to_reverb

sys.modules["tf_agents.replay_buffers.rlds_to_reverb"] = replay_buffers.rlds_to_reverb = rlds_to_reverb
runpy.run_module("tf_agents.replay_buffers.rlds_to_reverb_test", run_name="__main__", alter_sys=True)
