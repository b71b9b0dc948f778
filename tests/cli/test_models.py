"""Models of Stable-Baselines3 on the command line."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from streamsampler import LocalSampler, load
from streamsampler.data import npz as storage
from tests.cli.harness import invoke

pytestmark = pytest.mark.extras

TIMESTEPS = ("--num-samples", 200, "--seed", 3, "--workers", 1)


def sample(*arguments: object) -> Result:
    return invoke("sample", "CartPole-v1", "--agent", *arguments, *TIMESTEPS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import gymnasium
    import stable_baselines3
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    folder = tmp_path_factory.mktemp("models")
    for name in ("A2C", "DQN"):
        model = getattr(stable_baselines3, name)("MlpPolicy", gymnasium.make("CartPole-v1"), device="cpu", seed=1)
        model.save(folder / f"{name}.zip")
    normalized = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    model = stable_baselines3.PPO("MlpPolicy", normalized, n_steps=64, device="cpu", seed=1).learn(64)
    (folder / "normalized").mkdir()
    for path in (folder / "normalized" / "PPO.zip", folder / "alone.zip"):
        model.save(path)
    normalized.save(str(folder / "normalized" / "vecnormalize.pkl"))
    return folder


def assert_sampled(path: Path, agent: Any) -> None:
    with LocalSampler(agent, "CartPole-v1", seed=3) as sampler:
        assert load(path) == sampler.obtain_samples(200)


@pytest.mark.parametrize("name", ["A2C", "DQN"])
def test_a_model_is_an_agent(folder: Path, tmp_path: Path, name: str) -> None:
    from streamsampler.adapters.sb3 import SB3Agent

    result = sample(folder / f"{name}.zip", "--out", tmp_path / "a")
    assert result.exit_code == 0, result.stderr
    assert_sampled(tmp_path / "a", SB3Agent.load(folder / f"{name}.zip", name))
    assert len(storage.read(tmp_path / "a.npz")[1]["provenance"]["agent_sha256"]) == 64
    result = invoke("sample", "Pendulum-v1", "--agent", folder / f"{name}.zip", *TIMESTEPS)
    assert (result.exit_code, "was trained with observations in Box" in result.stderr) == (2, True)


def test_statistics_come_along_or_are_missed(folder: Path, tmp_path: Path) -> None:
    from streamsampler.adapters.sb3 import SB3Agent

    model, statistics = folder / "normalized" / "PPO.zip", folder / "normalized" / "vecnormalize.pkl"
    assert sample(model, "--vec-normalize", statistics, "--out", tmp_path / "a", "--quiet").stderr == ""
    assert_sampled(tmp_path / "a", SB3Agent.load(model, "PPO", vec_normalize=statistics))
    assert f"pass --vec-normalize '{statistics}', else --vec-normalize none" in sample(model).stderr
    assert sample(model, "--vec-normalize", "none", "--out", tmp_path / "b", "--quiet").stderr == ""
    assert_sampled(tmp_path / "b", SB3Agent.load(model, vec_normalize=False))


@pytest.mark.parametrize(
    "line",
    [
        "sample CartPole-v1 --num-samples 20",
        "evaluate CartPole-v1 --num-trajectories 2",
        "compare CartPole-v1 --num-trajectories 2 --agent random",
    ],
)
def test_the_warning_that_a_model_lacks_its_statistics_is_not_hidden(folder: Path, line: str) -> None:
    """With `--quiet` it is the only line: what is printed on standard output is probably wrong."""
    result = invoke(*line.split(), "--agent", folder / "alone.zip", "--workers", 0, "--quiet", "--json")
    assert result.exit_code == 0, result.stderr
    (warning,) = result.stderr.splitlines()
    assert warning.startswith(f"Warning: {folder / 'alone.zip'} was trained under VecNormalize; if that normalised")
    assert "pass --vec-normalize FILE, which VecNormalize.save wrote, else --vec-normalize none" in warning


def test_another_model_of_the_same_name_does_not_go_on(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.zip"
    sharding = ("--out", tmp_path / "out", "--shard-size", 50)
    shutil.copy(folder / "A2C.zip", model)
    assert sample(model, *sharding).exit_code == 0
    shutil.copy(folder / "DQN.zip", model)
    result = sample(model, *sharding, "--resume")
    assert (result.exit_code, "agent_sha256 is " in result.stderr) == (2, True)
