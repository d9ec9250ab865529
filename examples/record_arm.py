"""A robot arm that reaches for a ball, seen by a camera, for `rlds-beam record`.

The simulator is dm_control's Jaco arm. An action is the velocity of the hand; a damped inverse of the Jacobian turns it
into velocities of the joints. MuJoCo draws on the CPU with OSMesa (Debian: libosmesa6), or on a GPU with MUJOCO_GL=egl.

    MUJOCO_GL=osmesa PYTHONPATH=examples rlds-beam record demo_data/arm --episodes=6 --max_episode_steps=60 \\
        --env=record_arm:simulator --policy='TruncatedGaussianHead(record_arm:policy, sigma=0.05)'

As a program, it draws one image; exit code 0: it has a picture.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import mujoco
import numpy as np
from dm_control import manipulation
from dm_control.mujoco.engine import MovableCamera

SIZE = 128
"""Height and width of an image, in pixels."""
STEPS_PER_SECOND = 10
NEAR = 0.03
"""The distance to the ball, in meters, that ends an episode."""
_JOINTS = [f"jaco_arm/joint_{i}" for i in range(1, 7)]


def policy(observations: dict[str, np.ndarray]) -> np.ndarray:
    """The velocity of the hand toward the ball, (N, 3), in m/s."""
    return 1.2 * (observations["ball"] - observations["hand"])


def simulator() -> Arm:
    return Arm()


class Arm(gymnasium.Env[dict[str, np.ndarray], np.ndarray]):
    """The arm: an image, the joint angles in radians, and the positions of the hand and the ball in meters."""

    metadata = {"render_fps": STEPS_PER_SECOND}  # noqa: RUF012
    action_space = gymnasium.spaces.Box(-0.4, 0.4, (3,), np.float32)
    observation_space = gymnasium.spaces.Dict(
        {
            "image": gymnasium.spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8),
            "joints": gymnasium.spaces.Box(-np.inf, np.inf, (6,), np.float32),
            "hand": gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),
            "ball": gymnasium.spaces.Box(-np.inf, np.inf, (3,), np.float32),
        }
    )

    def __init__(self) -> None:
        self._env = manipulation.load("reach_site_features", seed=0)
        self._env.task.set_timesteps(1 / STEPS_PER_SECOND, 0.005)
        self._env.task.root_entity.mjcf_model.root.visual.quality.shadowsize = 512  # a tenth of the time to draw

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self._env.random_state.seed(seed % 2**32)
        self._env.reset()
        return self._observe(), {}

    def step(self, action: np.ndarray) -> tuple[dict[str, np.ndarray], float, bool, bool, dict[str, Any]]:
        physics = self._env.physics
        jacobian = np.zeros((3, physics.model.nv))
        site = physics.model.name2id("jaco_arm/jaco_hand/pinchsite", "site")
        mujoco.mj_jacSite(physics.model.ptr, physics.data.ptr, jacobian, None, site)
        jacobian = jacobian[:, [physics.model.joint(name).dofadr[0] for name in _JOINTS]]
        joints = jacobian.T @ np.linalg.solve(jacobian @ jacobian.T + 0.01 * np.eye(3), action)
        spec = self._env.action_spec()
        limit = np.max(np.abs(joints) / spec.maximum[:6])
        self._env.step(np.append(joints / max(limit, 1), np.zeros(3)))
        observation = self._observe()
        near = bool(np.linalg.norm(observation["ball"] - observation["hand"]) < NEAR)
        return observation, float(near), near, False, {}

    def close(self) -> None:
        self._env.close()

    def _observe(self) -> dict[str, np.ndarray]:
        physics = self._env.physics
        camera = MovableCamera(physics, SIZE, SIZE)
        camera.set_pose((0, 0, 0.35), 1.1, 140, -20)
        hand, ball = (physics.named.data.site_xpos[name] for name in ("jaco_arm/jaco_hand/pinchsite", "target_site"))
        return {
            "image": camera.render().copy(),
            "joints": physics.named.data.qpos[_JOINTS].astype(np.float32),
            "hand": hand.astype(np.float32),
            "ball": ball.astype(np.float32),
        }


if __name__ == "__main__":
    arm = Arm()
    image = arm.reset(seed=0)[0]["image"]
    arm.close()
    sys.exit(0 if image.std() > 1 else 1)
