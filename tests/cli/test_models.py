"""Models of Stable-Baselines3 on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from streamsampler import LocalSampler, load
from streamsampler.cli.app import cli
from streamsampler.data import npz as storage

pytestmark = pytest.mark.extras

TIMESTEPS = ("--num-samples", 200, "--seed", 3, "--workers", 1)


def invoke(*arguments: object) -> Result:
    return CliRunner().invoke(cli, ["sample", *map(str, arguments)], prog_name="streamsampler")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import gymnasium
    import stable_baselines3
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    folder = tmp_path_factory.mktemp("models")
    for name in ("A2C", "DQN"):
        getattr(stable_baselines3, name)("MlpPolicy", gymnasium.make("CartPole-v1"), device="cpu", seed=1).save(
            folder / f"{name}.zip"
        )
    normalized = VecNormalize(DummyVecEnv([lambda: gymnasium.make("CartPole-v1")]))
    model = stable_baselines3.PPO("MlpPolicy", normalized, n_steps=64, device="cpu", seed=1).learn(64)
    (folder / "normalized").mkdir()
    model.save(folder / "normalized" / "PPO.zip")
    normalized.save(str(folder / "normalized" / "vecnormalize.pkl"))
    return folder


def sampled(agent: Any) -> Any:
    with LocalSampler(agent, "CartPole-v1", seed=3) as sampler:
        return sampler.obtain_samples(200)


@pytest.mark.parametrize("name", ["A2C", "DQN"])
def test_a_model_is_an_agent(folder: Path, tmp_path: Path, name: str) -> None:
    from streamsampler.adapters.sb3 import SB3Agent

    result = invoke("CartPole-v1", "--agent", folder / f"{name}.zip", *TIMESTEPS, "--out", tmp_path / "a")
    assert result.exit_code == 0, result.stderr
    assert load(tmp_path / "a") == sampled(SB3Agent.load(folder / f"{name}.zip", name))
    assert len(storage.read(tmp_path / "a.npz")[1]["provenance"]["agent_sha256"]) == 64


def test_a_model_for_other_spaces_is_refused_first(folder: Path) -> None:
    result = invoke("Pendulum-v1", "--agent", folder / "A2C.zip", *TIMESTEPS)
    assert result.exit_code == 2
    assert "was trained with observations in Box" in result.stderr


def test_statistics_come_along_or_are_missed(folder: Path, tmp_path: Path) -> None:
    from streamsampler.adapters.sb3 import SB3Agent

    model, statistics = folder / "normalized" / "PPO.zip", folder / "normalized" / "vecnormalize.pkl"
    result = invoke("CartPole-v1", "--agent", model, "--vec-normalize", statistics, *TIMESTEPS, "--out", tmp_path / "a")
    assert (result.exit_code, "Warning" in result.stderr) == (0, False), result.stderr
    assert load(tmp_path / "a") == sampled(SB3Agent.load(model, "PPO", vec_normalize=statistics))
    result = invoke("CartPole-v1", "--agent", model, *TIMESTEPS, "--json")
    assert f"pass --vec-normalize '{statistics}', else --vec-normalize none" in result.stderr
    assert json.loads(result.stdout)["agent"] == str(model)
    result = invoke("CartPole-v1", "--agent", model, "--vec-normalize", "none", *TIMESTEPS, "--out", tmp_path / "b")
    assert "Warning" not in result.stderr
    assert load(tmp_path / "b") == sampled(SB3Agent.load(model, vec_normalize=False))


@pytest.mark.parametrize("command", ["sample", "evaluate", "compare"])
def test_the_warning_that_a_model_lacks_its_statistics_is_not_hidden(folder: Path, command: str) -> None:
    """With `--quiet` it is the only line: what is printed on standard output is probably wrong."""
    model = folder / "alone.zip"
    model.write_bytes((folder / "normalized" / "PPO.zip").read_bytes())
    amounts: dict[str, tuple[object, ...]] = {
        "sample": ("--num-samples", 20, "--workers", 0),
        "evaluate": ("--num-trajectories", 2, "--workers", 0),
        "compare": ("--agent", "random", "--num-trajectories", 2, "--workers", 0),
    }
    arguments = [command, "CartPole-v1", "--agent", model, *amounts[command], "--quiet", "--json"]
    result = CliRunner().invoke(cli, list(map(str, arguments)), prog_name="streamsampler")
    assert result.exit_code == 0, result.stderr
    assert result.stderr.splitlines() == [
        f"Warning: {model} was trained under VecNormalize; if that normalised observations, pass --vec-normalize FILE, "
        "which VecNormalize.save wrote, else --vec-normalize none. Without its statistics the model acts on "
        "observations unlike those that it learned from"
    ]
    json.loads(result.stdout)


def test_another_model_of_the_same_name_does_not_go_on(folder: Path, tmp_path: Path) -> None:
    model = tmp_path / "model.zip"
    sharding = ("--out", tmp_path / "out", "--shard-size", 50)
    model.write_bytes((folder / "A2C.zip").read_bytes())
    assert invoke("CartPole-v1", "--agent", model, *TIMESTEPS, *sharding).exit_code == 0
    model.write_bytes((folder / "DQN.zip").read_bytes())
    result = invoke("CartPole-v1", "--agent", model, *TIMESTEPS, *sharding, "--resume")
    assert result.exit_code == 2
    assert "agent_sha256 is " in result.stderr
