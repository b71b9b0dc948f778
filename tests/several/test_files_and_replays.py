"""What several agents did, in files, in other formats, and run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import streamsampler
from streamsampler import LocalSampler as AnySampler
from streamsampler import TrajectoryBatch, load, replay, sample_to_folder
from streamsampler.cli.app import cli
from streamsampler.data.folder import TrajectoryFolder
from streamsampler.errors import UsageError
from streamsampler.formats.columns import open_source
from streamsampler.formats.tables import tables
from tests.scripted.games import Chooser, Comings, Turns

LocalSampler: Any = streamsampler.LocalSampler
POLICIES = {"red": Chooser(0), "blue": Chooser(1)}


def sampled(game: Any = Comings, n: int = 4, agents: Any = POLICIES, **options: Any) -> Any:
    with LocalSampler(agents, game, seed=7, **options) as sampler:
        return sampler.obtain_trajectories(n)


def command(*words: Any) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


class Noisy(Comings):
    """What agents see is drawn from nothing that is seeded."""

    def seen(self, agent: str) -> Any:
        return super().seen(agent) + np.float32(np.random.default_rng().uniform(0, 0.5))


class Turncoat(Chooser):
    """Another policy, with the same rewards for all."""

    def get_action(self, observation: Any) -> Any:
        action, info = super().get_action(observation)
        return (action + 1) % 4, info


# --- Files


def test_what_one_policy_did_is_saved_with_whose_it_is(tmp_path: Path) -> None:
    blue = sampled()["blue"]
    found: TrajectoryBatch[Any, Any] = load(blue.save(tmp_path / "blue.npz"))
    for name in ("agent_ids", "episode_numbers", "env_timesteps", "observations", "actions", "rewards"):
        assert getattr(found, name).tolist() == getattr(blue, name).tolist()


def test_an_info_may_have_any_name(tmp_path: Path) -> None:
    """Also where one agent is alone: no name of a user's means anything to files."""

    class Named(Comings):
        def info(self, agent: str) -> Any:
            return {"of_agents": {"a": 1}, "z": 1}

    for name in ("of_agents", "z"):
        kept: Any = load(sampled(Named).save(tmp_path / "it.npz", infos=[name]))
        assert list(kept["red"].env_infos) == [name]


def test_tables_say_whose_a_row_is() -> None:
    blue = sampled()["blue"]
    ((timesteps, trajectories),) = tables(open_source(blue))
    assert trajectories["agent"].rows.tolist() == blue.agent_ids.tolist()
    assert trajectories["episode"].rows.tolist() == blue.episode_numbers.tolist()
    assert timesteps["env_timestep"].rows.tolist() == blue.env_timesteps.tolist()


def test_episodes_are_not_exported_without_what_agents_did(tmp_path: Path) -> None:
    batch = sampled()
    path = batch.save(tmp_path / "it.npz")
    for source in (batch, path):
        with pytest.raises(
            UsageError, match=r"export what one policy did, batch\['name'\].*'red', 'blue'|'blue', 'red'"
        ):
            open_source(source)
    result = command("export", path, "--to", "parquet", "--out", tmp_path / "tables")
    assert result.exit_code != 0


def test_a_folder_of_episodes_has_no_sequences(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    with LocalSampler(POLICIES, Comings, seed=7) as sampler:
        sample_to_folder(sampler, tmp_path / "it", n_trajectories=4, shard_size=20)
    with pytest.raises(UsageError, match="episodes of several agents"):
        TrajectoryFolder(tmp_path / "it").torch_dataset(4)


# --- Run again


@pytest.mark.parametrize("game", [Comings, Turns])
def test_a_replay_compares_what_each_agent_saw_and_did(game: Any, tmp_path: Path) -> None:
    with LocalSampler(POLICIES, game, seed=7) as sampler:
        batch = sampler.obtain_trajectories(4)
        assert sampler.replay(1, 2, recorded=batch).same
        assert sampler.replay(1, 2, recorded=batch, actions=True).same
    path = batch.save(tmp_path / "it.npz")
    assert replay(path, 2, agent=POLICIES, env=game).same
    assert replay(path, 2, env=game, actions=True).same
    other = replay(path, 2, agent={"red": Chooser(0), "blue": Turncoat(1)}, env=game)
    assert other.difference is not None
    assert other.difference.what == "action"
    assert "of agent 'blue_" in str(other.difference)


def test_a_replay_finds_what_is_no_function_of_the_seed() -> None:
    with LocalSampler(POLICIES, Noisy, seed=7, check=None) as sampler:
        batch = sampler.obtain_trajectories(2)
        found = sampler.replay(1, 1, recorded=batch)
    assert not found.same
    assert "of timestep 0: recorded" in str(found)


def test_a_replay_finds_who_was_not_there() -> None:
    batch = sampled()
    with LocalSampler(POLICIES, lambda: Comings({"red_0": Comings().stays["red_0"]}), seed=7) as sampler:
        sampler.obtain_trajectories(4)
        found = sampler.replay(1, 1, recorded=batch)
    assert found.difference is not None
    assert "missing" in str(found.difference)


def test_the_command_replays_policies(tmp_path: Path) -> None:
    with AnySampler({"red": "random", "blue": "random"}, "tests.scripted.zoo:env", seed=7) as sampler:
        path = sampler.obtain_trajectories(3).save(tmp_path / "it.npz")
    env = "--env", "tests.scripted.zoo:env"
    agents = "--agent", "red=random", "--agent", "blue=random"
    for words in (agents, ("--actions",)):
        result = command("replay", path, "--index", 1, *env, *words)
        assert (result.exit_code, "the same as recorded" in result.output) == (0, True), result.output
    result = command("replay", path, "--index", 1, *env, "--agent", "green=random")
    assert result.exit_code == 2
    assert "has no policy 'green'; it has" in result.output


# --- The command


def test_the_command_says_what_it_cannot_do() -> None:
    result = command("compare", "tests.scripted.zoo:env", "--agent", "random", "--agent", "random", "-n", 2)
    assert result.exit_code == 2
    assert "compare is for environments of one agent here" in result.output
    result = command("sample", "CartPole-v1", "--aec", "--num-trajectories", 1)
    assert result.exit_code == 2
    assert "no module of PettingZoo's" in result.output
