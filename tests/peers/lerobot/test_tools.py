"""LeRobot's tools and other readers of its format, on what `convert --to=lerobot` wrote in v3.0."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lerobot_data as data
import numpy as np
import pytest
from checkout import REAL_DATA
from lerobot_peer import OPTIONS, decode_pixels, opened

import rlds_beam


def test_lerobot_doctor_passes(output):
    command = [str(Path(sys.executable).with_name("lerobot-doctor")), str(output), "--ci"]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_lerobots_own_tools_edit_it(source, output, folder):
    from lerobot.datasets.dataset_tools import delete_episodes

    ours = folder / "without_matrix"  # no matrix column, which these tools cannot write
    rlds_beam.convert(source[0], ours, map="-observation/matrix,-observation/depth", **OPTIONS)
    edited = delete_episodes(opened(ours), [0, 2], output_dir=folder / "edited", repo_id="some/edited")
    assert len(edited) == sum(len(e) for k, e in enumerate(source[1]) if k not in (0, 2))


def test_act_trains_from_it(folder):
    import torch
    from lerobot.configs.types import FeatureType
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy
    from lerobot.policies.factory import make_pre_post_processors
    from lerobot.utils.feature_utils import dataset_to_policy_features

    bridge = REAL_DATA / "bridge_dataset"
    if not bridge.exists():
        pytest.skip("the real dataset is not available")
    out = folder / "bridge"
    left_out = [f"-observation/image_{i}" for i in (1, 2, 3)]
    rlds_beam.convert(
        bridge, out, to="lerobot", fps=5, repair="missing_is_last", map=[*left_out, "-language_embedding"]
    )
    dataset = opened(out, delta_timestamps={"action": [i / 5 for i in range(4)]})
    features = dataset_to_policy_features(dataset.meta.features)
    outputs = {key: value for key, value in features.items() if value.type is FeatureType.ACTION}
    inputs = {key: value for key, value in features.items() if key not in outputs and key.startswith("observation")}
    config = ACTConfig(
        input_features=inputs,
        output_features=outputs,
        chunk_size=4,
        n_action_steps=4,
        dim_model=32,
        n_heads=2,
        dim_feedforward=32,
        n_encoder_layers=1,
        latent_dim=4,
        pretrained_backbone_weights=None,
        device="cpu",
    )
    policy = ACTPolicy(config)
    prepare, _ = make_pre_post_processors(config, dataset_stats=dataset.meta.stats)
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    batch = prepare(next(iter(torch.utils.data.DataLoader(dataset, batch_size=4, shuffle=True))))
    losses = []
    for _ in range(5):
        loss, _ = policy.forward(batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss))
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("images", ["copy", "video"])
def test_lerobots_own_converter_takes_our_v21_to_v30(moving, folder, images):
    from lerobot.scripts.convert_dataset_v21_to_v30 import convert_dataset

    out = folder / f"v21_{images}"
    rlds_beam.convert(
        moving[0],
        out,
        images=images,
        map="-observation/matrix,-observation/depth",
        **{**OPTIONS, "lerobot_version": "2.1"},
    )
    convert_dataset("some/name", root=out, push_to_hub=False)
    dataset, frame = opened(out), 0
    assert data.meta(out, "info")["codebase_version"] == "v3.0"
    assert len(dataset) == sum(map(len, moving[1]))
    for k, e in enumerate(moving[1]):
        for t in (0, len(e) - 1):
            item = dataset[frame + t]
            assert (item["episode_index"], item["frame_index"]) == (k, t)
            assert item["task"] == e.steps["language_instruction"][t].decode()
            np.testing.assert_array_equal(item["action"], e.steps["action"][t])
            pixels = e.steps["observation/wrist"][[t]].decode()[0]
            assert np.abs(decode_pixels(item, "observation.images.wrist") - pixels).mean() < 6
        frame += len(e)
