"""What several agents did: parts of it, in files and other formats, and run again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

import streamsampler
from streamsampler import MultiAgentBatch, SetParameters, TrajectoryBatch, evaluate, load, replay, sample_to_folder
from streamsampler.cli.app import cli
from streamsampler.errors import DataError, StorageError, UnwritableInfoError, UsageError
from streamsampler.filters import RunningNorm
from streamsampler.formats import to_pandas
from streamsampler.formats.sources import open_source
from streamsampler.formats.tables import tables
from tests.data.damage import forget_shards
from tests.scripted.games import Chooser, Comings, Turns
from tests.several.comparing import POLICIES, LocalSampler, sampled


def command(*words: Any) -> Result:
    return CliRunner().invoke(cli, [str(word) for word in words])


def by_turns(agent: str, index: int) -> str:
    """Policies change places from trajectory to trajectory."""
    return ("red", "blue")[(("red" in agent) + index) % 2]


# --- Parts and amounts


@pytest.mark.parametrize("game", [Comings, Turns])
def test_parts_and_files_of_a_batch_are_batches(game: Any, tmp_path: Path) -> None:
    for options in ({}, {"observation_filter": {"red": RunningNorm()}}):
        with LocalSampler(POLICIES, game, seed=1, policy_of=by_turns, **options) as sampler:
            sampler.obtain_trajectories(1)  # from which the filter learns
            batch = sampler.obtain_trajectories(6)
        parts = batch.split()
        assert TrajectoryBatch.concatenate(parts) == batch
        assert TrajectoryBatch.concatenate(batch[:2], batch[2:]) == batch
        assert [one.seeds for one in batch[::-1]] == [one.seeds for one in parts[::-1]]
        assert batch[::-1][::-1] == batch[batch.lengths > 0] == batch
        assert batch[[1, 1]][0] == batch[[1, 1]][1] == batch[1]
        assert len(batch[:0]) == 0
        assert [batch[i] for i in range(len(batch))] == parts
        path = batch.save(tmp_path / "x")
        again = load(path)
        assert isinstance(again, MultiAgentBatch)
        assert again == batch
        assert again.save(tmp_path / "again").read_bytes() == path.read_bytes()
        assert repr(again) == repr(batch)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"policies.red.agents.episodes", b"policies.xxx.agents.episodes", 1))
    with pytest.raises(StorageError):
        load(path)


def test_what_batches_of_policies_can_do(tmp_path: Path) -> None:
    batch = sampled(env=Turns, n=5)
    red = batch["red"]
    assert red.padded("observations").shape[:2] == (len(red), red.lengths.max())
    assert sum(len(rows) for rows in red.minibatches(10, seed=1)) == red.n_timesteps
    assert red.returns_to_go(0.9, red.returns).shape == (red.n_timesteps,)
    listed = TrajectoryBatch.from_list(red.to_list(), red.observation_space, red.action_space)
    assert listed.returns.tolist() == red.returns.tolist()
    found: Any = load(red[2:4].save(tmp_path / "red.npz"))
    for name in ("agent_ids", "episode_numbers", "env_timesteps", "observations", "actions", "rewards"):
        assert getattr(found, name).tolist() == getattr(red[2:4], name).tolist()
    with pytest.raises(KeyError, match="policy 'x' acted for no agent in this batch, only 'blue', 'red'"):
        batch["x"]
    for name in ("advantages", "minibatches", "padded", "to_torch", "next_observations"):
        with pytest.raises(AttributeError, match=rf"no {name}: use batch\['blue'\].{name}"):
            getattr(batch, name)
    with pytest.raises(DataError, match="only a policy's batch"):
        _ = sampled("random", "CartPole-v1", n=1).agent_ids


@pytest.mark.parametrize("count", ["env_steps", "agent_steps"])
def test_amounts_count_steps_of_the_environment_or_of_all_agents(count: Any) -> None:
    with LocalSampler(POLICIES, Comings, seed=1, check=None) as sampler:
        batch = sampler.obtain_samples(50, count=count)
        assert getattr(batch, f"n_{count}") >= 50 > getattr(batch[:-1], f"n_{count}")
        assert sampler.total_env_steps == batch.n_env_steps
        assert sampler.stats.ran_timesteps == sum(sampler.stats.worker_timesteps)
        with pytest.raises(UsageError, match="count must be one of 'env_steps', 'agent_steps', not 'x'"):
            sampler.obtain_samples(5, count="x")


def test_an_environment_is_taken_in_all_forms() -> None:
    batch = sampled()
    existing, new = streamsampler.ExistingEnvUpdate(Comings()), streamsampler.NewEnvUpdate(Comings)
    for env in (Comings(), lambda: Comings(), [Comings], new, existing, "tests.scripted.zoo:parallel_env"):
        assert sampled(env=env) == batch
    with LocalSampler(POLICIES, "CartPole-v1", seed=1) as sampler:
        with pytest.raises(streamsampler.RolloutError, match="for environments of several agents"):
            sampler.obtain_trajectories(3)
        assert len(sampler.obtain_trajectories(3, env_update=Comings)["red"]) == 6
    with LocalSampler("random", Comings, seed=1) as sampler:
        assert isinstance(sampler.obtain_trajectories(3), MultiAgentBatch)
        assert not isinstance(sampler.obtain_trajectories(3, env_update="CartPole-v1"), MultiAgentBatch)


class Scaled(Comings):
    scale = 1.0

    def step(self, actions: Any) -> Any:
        observations, rewards, *rest = super().step(actions)
        return observations, {agent: reward * self.scale for agent, reward in rewards.items()}, *rest


def test_parameters_are_set_before_the_reset_and_are_tasks() -> None:
    plain = sampled(env=Scaled)
    tripled = sampled(env=SetParameters({"scale": 3.0}, Scaled))
    assert (tripled.returns == 3 * plain.returns).all()
    assert tripled.episodes.infos["parameters"]["scale"].tolist() == [3.0] * 3
    with LocalSampler(POLICIES, Scaled, seed=1) as sampler:
        tasks = sampler.obtain_trajectories(2, tasks=[SetParameters({"scale": scale}) for scale in (1.0, 2.0)])
    assert tasks.episodes.infos["task_index"].tolist() == [0, 0, 1, 1]
    assert (tasks.returns == sampled(env=Scaled, n=4).returns * [1, 1, 2, 2]).all()


# --- Files


@pytest.mark.parametrize("infos", [False, ["t"], ["began", "n"]])
def test_infos_that_are_left_out_of_a_file(tmp_path: Path, infos: Any) -> None:
    batch = sampled()
    kept: Any = load(batch.save(tmp_path / "x", infos=infos))
    assert kept.returns.tolist() == batch.returns.tolist()
    names = {name for each in kept.policies.values() for name in {**each.env_infos, **each.agent_infos}}
    of_agents = [*kept.episodes.reset_infos.values(), *kept.episodes.last_infos.values()]
    names |= {name for each in of_agents for name in each}
    assert {name.removeprefix("_") for name in names} == set(infos or ())


class Odd(Comings):
    """Has infos with any name, and one that no file can hold."""

    def info(self, agent: str) -> Any:
        return {"odd": {1, 2}, "of_agents": {"a": 1}, "z": 1}


def test_infos_that_no_file_can_hold_and_those_of_any_name(tmp_path: Path) -> None:
    amount: dict[str, Any] = {"n_trajectories": 3, "shard_size": 5}
    with LocalSampler(POLICIES, Odd, seed=1) as sampler:
        batch = sampler.obtain_trajectories(2)
        with pytest.raises(UnwritableInfoError, match="odd"):
            batch.save(tmp_path / "x")
        with pytest.raises(UnwritableInfoError, match="odd"):
            sample_to_folder(sampler, tmp_path / "folder", **amount)
        folder: Any = sample_to_folder(sampler, tmp_path / "folder", infos=["z"], **amount)
    assert folder[0]["red"].env_infos.keys() == {"z"}
    for name in ("of_agents", "z"):
        kept: Any = load(batch.save(tmp_path / "it.npz", infos=[name]))
        assert list(kept["red"].env_infos) == [name]


def test_a_folder_is_the_batch_and_may_be_resumed(tmp_path: Path) -> None:
    batch = sampled(env=Turns, n=12)
    with LocalSampler(POLICIES, Turns, seed=1) as sampler:
        folder = sample_to_folder(sampler, tmp_path / "x", n_trajectories=12, shard_size=40)
    assert len(folder.shards) > 2
    assert folder.to_batch() == batch
    assert list(folder) == batch.split()
    last = sorted((tmp_path / "x").glob("shard-*.npz"))[-1]
    whole = last.read_bytes()
    forget_shards(tmp_path / "x", len(folder.shards) - 1)
    with LocalSampler(POLICIES, Turns, seed=1, n_workers=3) as sampler:
        sample_to_folder(sampler, tmp_path / "x", n_trajectories=12, shard_size=40, resume=True)
    assert last.read_bytes() == whole
    with pytest.raises((UsageError, ImportError), match=r"episodes of several agents|pip install torch"):
        folder.torch_dataset(4)


def test_tables_say_whose_a_row_is_and_are_of_one_policy(tmp_path: Path) -> None:
    batch = sampled()
    blue, path = batch["blue"], batch.save(tmp_path / "it.npz")
    ((timesteps, trajectories),) = tables(open_source(blue))
    assert trajectories["agent"].rows.tolist() == blue.agent_ids.tolist()
    assert trajectories["episode"].rows.tolist() == blue.episode_numbers.tolist()
    assert timesteps["env_timestep"].rows.tolist() == blue.env_timesteps.tolist()
    for source in (batch, path):
        with pytest.raises(UsageError, match=r"with policy=NAME, or --policy NAME .* among 'blue', 'red'"):
            open_source(source)
    assert command("export", path, "--to", "parquet", "--out", tmp_path / "tables").exit_code != 0


@pytest.mark.extras
def test_what_one_policy_did_is_exported_from_batches_files_and_folders(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    pandas = pytest.importorskip("pandas")

    def blue_in_some(agent: str, index: int) -> str:
        return "blue" if index >= 9 and "blue" in agent else "red"

    with LocalSampler(POLICIES, Turns, seed=1, policy_of=blue_in_some) as sampler:
        folder = sample_to_folder(sampler, tmp_path / "x", n_trajectories=12, shard_size=40)
    batch: Any = folder.to_batch()
    assert "blue" not in folder.shards[0].policies  # type: ignore[attr-defined]
    path = batch.save(tmp_path / "it.npz")
    whole = to_pandas(batch["blue"])
    for source in (batch, path, folder, tmp_path / "x"):
        assert all(map(pandas.DataFrame.equals, to_pandas(source, policy="blue"), whole))
    result = command("export", tmp_path / "x", "--to", "parquet", "--policy", "blue", "--out", tmp_path / "tables")
    assert result.exit_code == 0, result.stderr
    rows = pandas.read_parquet(tmp_path / "tables" / "trajectories.parquet")
    assert rows["index"].tolist() == batch["blue"].indices.tolist()
    with pytest.raises(UsageError, match="policy 'green' acted for no agent, only 'blue', 'red'"):
        to_pandas(folder, policy="green")
    with pytest.raises(UsageError, match="a single agent, so no policy 'red': leave policy out"):
        to_pandas(batch["blue"], policy="red")


# --- Films


class Shown:
    """Paints which step it is, and of which seed."""

    def __init__(self, render_mode: str | None = None) -> None:
        super().__init__()
        self.render_mode = render_mode

    def begin(self, seed: Any) -> None:
        super().begin(seed)  # type: ignore[misc]
        self.seed = seed

    def render(self) -> Any:
        picture = np.zeros((16, 16, 3), np.uint8)
        picture[0, :2, 0] = self.t, self.seed % 256  # type: ignore[attr-defined]
        return picture


class ShownComings(Shown, Comings):
    pass


class ShownTurns(Shown, Turns):
    pass


@pytest.mark.parametrize("game", [ShownComings, ShownTurns])
def test_episodes_of_several_agents_are_filmed_step_by_step(
    game: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[tuple[int, int]] = []

    class StoredContext:
        def __init__(self, path: Any) -> None:
            taken.clear()

        def add(self, picture: Any, _: float) -> None:
            taken.append(tuple(picture[0, :2, 0].tolist()))

        def __enter__(self) -> Any:
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("streamsampler.samplers.replay_results.VideoFile", StoredContext)
    monkeypatch.setattr("streamsampler.environments.filming._library", lambda: None)
    with LocalSampler(POLICIES, game, seed=1) as sampler:
        batch = sampler.obtain_trajectories(3)
        again = sampler.replay(1, 2, recorded=batch, video=tmp_path / "x.mp4")
    assert again.same
    ts = [t for t, _ in taken]
    assert {seed for _, seed in taken} == {batch.episodes.seeds[2] % 256}
    assert ts[0] == 0
    assert ts == sorted(ts)
    assert len(ts) == batch.episodes.lengths[2] + 1
    evaluate(POLICIES, game, num_trajectories=2, seed=1, n_workers=0, return_of="red_0", video=tmp_path, video_of=1)
    assert len(taken) > 1
    path = batch.save(tmp_path / "it.npz")
    assert replay(path, 0, agent=POLICIES, env=game, video=tmp_path / "y.mp4").same
    assert len(taken) == batch.episodes.lengths[0] + 1
    with LocalSampler(POLICIES, {ShownComings: Comings, ShownTurns: Turns}[game], seed=1) as sampler:
        sampler.obtain_trajectories(1)
        with pytest.raises(UsageError, match="cannot be filmed: its render_mode is None"):
            sampler.replay(1, 0, video=tmp_path / "z.mp4")


@pytest.mark.extras
@pytest.mark.filterwarnings("ignore")
def test_an_environment_of_pettingzoo_is_filmed(tmp_path: Path) -> None:
    av, name = pytest.importorskip("av"), "pettingzoo.butterfly.cooperative_pong_v6"
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    with LocalSampler({"both": "random"}, name, policy_of=lambda *_: "both", seed=1, max_episode_length=5) as sampler:
        sampler.obtain_trajectories(1)
        sampler.replay(1, 0, video=tmp_path / "x.mp4")
    with av.open(str(tmp_path / "x.mp4")) as film:
        assert sum(1 for _ in film.decode(video=0)) == 6


# --- Run again


class Noisy(Comings):
    """What agents see is drawn from nothing that is seeded."""

    def seen(self, agent: str) -> Any:
        return super().seen(agent) + np.float32(np.random.default_rng().uniform(0, 0.5))


class Turncoat(Chooser):
    """Another policy, with the same rewards for all."""

    def get_action(self, observation: Any) -> Any:
        action, info = super().get_action(observation)
        return (action + 1) % 4, info


@pytest.mark.parametrize("game", [Comings, Turns])
def test_a_replay_compares_what_each_agent_saw_and_did(game: Any, tmp_path: Path) -> None:
    with LocalSampler(POLICIES, game, seed=7) as sampler:
        batch = sampler.obtain_trajectories(4)
        assert sampler.replay(1, 2, recorded=batch).same
        assert sampler.replay(1, 2, recorded=batch, actions=True).same
    path = batch.save(tmp_path / "it.npz")
    assert replay(path, 2, agent=POLICIES, env=game).same
    assert replay(path, 2, env=game, actions=True).same
    other = replay(path, 2, agent={"red": Chooser(0), "blue": Turncoat(1)}, env=game).difference
    assert other is not None
    assert other.what == "action"
    assert "of agent 'blue_" in str(other)


def test_a_replay_finds_what_is_no_function_of_the_seed_and_who_was_not_there() -> None:
    with LocalSampler(POLICIES, Noisy, seed=7, check=None) as sampler:
        found = sampler.replay(1, 1, recorded=sampler.obtain_trajectories(2))
    assert not found.same
    assert "of timestep 0: recorded" in str(found)
    batch = sampled(seed=7)
    with LocalSampler(POLICIES, lambda: Comings({"red_0": Comings().stays["red_0"]}), seed=7) as sampler:
        sampler.obtain_trajectories(3)
        found = sampler.replay(1, 1, recorded=batch)
    assert "missing" in str(found.difference)


def test_the_command_replays_policies(tmp_path: Path) -> None:
    env = "tests.scripted.zoo:env"
    path = sampled({"red": "random", "blue": "random"}, env).save(tmp_path / "it.npz")
    for words in (("--agent", "red=random", "--agent", "blue=random"), ("--actions",)):
        result = command("replay", path, "--index", 1, "--env", env, *words)
        assert (result.exit_code, "the same as recorded" in result.output) == (0, True), result.output
    result = command("replay", path, "--index", 1, "--env", env, "--agent", "green=random")
    assert result.exit_code == 2
    assert "has no policy 'green'; it has" in result.output
