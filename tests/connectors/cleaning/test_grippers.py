"""Grippers, compared with OpenVLA's and Octo's data_utils.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from edits import FEW, edited, with_actions
from hypothesis import given
from hypothesis import strategies as st

from rlds_beam import connectors as c


def binarized(actions: Any) -> list[float]:
    """The loop in its docstring."""
    made, carry = [0.0] * len(actions), actions[-1]
    for i in reversed(range(len(actions))):
        if actions[i] > 0.95 or actions[i] < 0.05:
            carry = float(actions[i] > 0.95)
        made[i] = carry
    return made


def absolute(actions: Any) -> list[float]:
    """1 opens (below -0.1), -1 closes (above 0.1); the first command is a change."""
    commands = [1 if a < -0.1 else -1 if a > 0.1 else 0 for a in actions]
    state = -next((command for command in commands if command), -1)
    made = []
    for command in commands:
        state = command or state
        made.append(state / 2 + 0.5)
    return made


@FEW
@given(st.lists(st.sampled_from([-1.0, -0.05, 0.0, 0.03, 0.5, 0.97, 1.0]), min_size=1, max_size=15))
def test_grippers_equal_openvlas(gripper):
    actions = np.stack([np.full(len(gripper), 9.0), gripper], axis=1).astype(np.float32)
    episode = with_actions(actions)
    for piece, reference in (
        (c.BinarizeGripper(), binarized),
        (c.RelativeToAbsoluteGripper(), absolute),
        (c.InvertGripper(), lambda values: [1 - v for v in values]),
    ):
        (made,) = edited(piece, episode)
        np.testing.assert_array_equal(made.steps["action"][:, 0], 9)
        np.testing.assert_array_equal(made.steps["action"][:, 1], np.asarray(reference(actions[:, 1]), np.float32))
    (other,) = edited(c.InvertGripper(index=0), episode)
    np.testing.assert_array_equal(other.steps["action"][:, 0], -8)
