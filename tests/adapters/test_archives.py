"""Which algorithm a model of Stable-Baselines3 is of, told from its file alone."""

import json
import zipfile

import pytest

from streamsampler.agents.sb3 import algorithm_of
from streamsampler.errors import UsageError


def archive(path, **data):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("data", json.dumps(data))
    return path


@pytest.mark.parametrize(
    ("module", "attributes", "algorithm"),
    [
        ("stable_baselines3.common.policies", {"clip_range": 1, "gae_lambda": 1}, "PPO"),
        ("stable_baselines3.common.policies", {"gae_lambda": 1}, "A2C"),
        ("stable_baselines3.common.policies", {"cg_max_steps": 1, "gae_lambda": 1}, "TRPO"),
        ("stable_baselines3.dqn.policies", {}, "DQN"),
        ("stable_baselines3.td3.policies", {}, "TD3"),
        ("sb3_contrib.common.recurrent.policies", {"clip_range": 1}, "RecurrentPPO"),
        ("sb3_contrib.common.maskable.policies", {"clip_range": 1}, "MaskablePPO"),
        ("sb3_contrib.tqc.policies", {"target_entropy": 1}, "TQC"),
        ("my_policies", {"target_entropy": 1}, "SAC"),
        ("my_policies", {"exploration_rate": 1}, "DQN"),
    ],
)
def test_the_algorithm_is_told(tmp_path, module, attributes, algorithm):
    path = archive(tmp_path / "m.zip", policy_class={"__module__": module}, **attributes)
    assert algorithm_of(path) == algorithm


def test_other_files_are_named(tmp_path):
    (tmp_path / "text.zip").write_text("not a zip")
    with zipfile.ZipFile(tmp_path / "other.zip", "w") as file:
        file.writestr("x", "y")
    for path in (tmp_path / "text.zip", tmp_path / "other.zip", archive(tmp_path / "less.zip", a=1)):
        with pytest.raises(UsageError, match=f"{path.name} is no model that Stable-Baselines3 saved"):
            algorithm_of(path)
    with pytest.raises(
        UsageError, match=r"does not say which algorithm it was trained with: name it, as in SB3Agent\.load"
    ):
        algorithm_of(archive(tmp_path / "odd.zip", policy_class={"__module__": "mine"}))
    with pytest.raises(FileNotFoundError):
        algorithm_of(tmp_path / "nowhere.zip")
