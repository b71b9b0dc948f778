"""C1 for several agents: the same batches, wherever they are sampled, whoever is killed, in any form."""

from __future__ import annotations

import os
import pickle
import signal
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import streamsampler
from streamsampler import MultiAgentBatch, SetParameters, TrajectoryBatch, sample_to_folder
from streamsampler.data.folder import TrajectoryFolder
from streamsampler.errors import StorageError, UnwritableInfoError
from streamsampler.filters import RunningNorm
from tests.data.damage import forget_shards
from tests.scripted.games import Chooser, Comings, Turns
from tests.several.test_policies import Rows

# Calls return a `MultiAgentBatch`, which type checkers cannot know.
LocalSampler: Any = streamsampler.LocalSampler
MultiprocessingSampler: Any = streamsampler.MultiprocessingSampler
RaySampler: Any = streamsampler.RaySampler

SEED = 35
GAMES: dict[str, Any] = {"parallel": Comings, "turns": Turns}
ENGINES: list[Any] = [
    ("local", 3, {}),
    ("processes", 2, {}),
    *(pytest.param("local", n, {}, marks=pytest.mark.slow) for n in (2, 7)),
    *(pytest.param("processes", n, {}, marks=pytest.mark.slow) for n in (1, 3, 7)),
    *(pytest.param("processes", n, {"engine": "queues"}, marks=pytest.mark.slow) for n in (1, 2, 3, 7)),
    *(pytest.param("processes", 3, {"start_method": how}, marks=pytest.mark.slow) for how in ("fork", "spawn")),
    *(pytest.param("ray", n, {}, marks=[pytest.mark.ray, pytest.mark.extras]) for n in (2, 7)),
]


def by_turns(agent: str, index: int) -> str:
    """Policies change places from trajectory to trajectory."""
    return ("red", "blue", "green")[(("red" in agent) + index) % 3]


def agents() -> dict[str, Any]:
    return {"red": Chooser(0), "blue": Chooser(1), "green": Rows()}


def made(kind: str, n_workers: int, game: str, **options: Any) -> Any:
    options = {"seed": SEED, "n_workers": n_workers, "policy_of": by_turns, **options}
    if kind == "ray":
        return RaySampler(agents(), GAMES[game], worker_resources={"num_cpus": 0}, **options)
    return {"local": LocalSampler, "processes": MultiprocessingSampler}[kind](agents(), GAMES[game], **options)


def calls(sampler: Any) -> list[MultiAgentBatch]:
    """Calls of all kinds, with policies that are updated in turn."""
    return [
        sampler.obtain_samples(150),
        sampler.obtain_samples(200, {"red": (2,)}, count="agent_steps"),
        sampler.obtain_trajectories(9, {"blue": (3,)}),
        sampler.obtain_trajectories(seeds=[3, 1, 4]),
        sampler.obtain_samples(60, {"red": (0,), "green": Chooser(2)}),
        TrajectoryBatch.concatenate(sampler.stream({"green": (1,)}, n_trajectories=7)),
    ]


@cache
def expected(game: str) -> list[MultiAgentBatch]:
    with made("local", 1, game) as sampler:
        return calls(sampler)


@pytest.mark.parametrize(("kind", "n_workers", "options"), ENGINES)
@pytest.mark.parametrize("game", GAMES)
def test_same_batches(kind: str, n_workers: int, options: Any, game: str, request: pytest.FixtureRequest) -> None:
    if kind == "ray":
        request.getfixturevalue("ray_cluster")
    with made(kind, n_workers, game, **options) as sampler:
        found = calls(sampler)
    for number, (batch, other) in enumerate(zip(found, expected(game), strict=True)):
        assert batch == other, f"call {number}: {batch} is not {other}"


def test_what_is_compared_is_not_trivial() -> None:
    for game in GAMES:
        batches = expected(game)
        assert all(set(batch.policies) == {"red", "blue", "green"} for batch in batches)
        assert len({batch.returns.sum() for batch in batches}) == len(batches)
        assert len({tuple(sorted(set(each.agent_ids.tolist()))) for each in batches[0].policies.values()}) == 1
        assert batches[1].n_agent_steps >= 200 > batches[1][:-1].n_agent_steps


class Killing:
    """Kills the workers in turn, each time that a thousand more timesteps were shown: what was lost is run again."""

    def __init__(self, sampler: Any) -> None:
        self.sampler, self.kills, self.next = sampler, 0, 1_000

    def __call__(self, snapshot: Any) -> None:
        if snapshot.timesteps >= self.next and not snapshot.complete:
            pids = self.sampler.worker_pids()
            self.kills += 1
            self.next = snapshot.timesteps + 1_000
            os.kill(pids[self.kills % len(pids)], signal.SIGKILL)


@pytest.mark.parametrize("engine", ["processes", pytest.param("queues", marks=pytest.mark.slow)])
@pytest.mark.parametrize("game", GAMES)
def test_same_batches_although_workers_are_killed(engine: Any, game: str, patient: None) -> None:
    options = {"engine": engine, "max_restarts": None, "max_lifetime_restarts": None}
    with made("processes", 3, game, **options) as sampler:
        found = []
        for number in range(4):
            for pid in sampler.worker_pids()[: number % 3 + 1]:
                os.kill(pid, signal.SIGKILL)
            found.append(sampler.obtain_samples(150 if number == 0 else 40))
        assert sampler.stats.restarts >= 4
    with made("local", 1, game) as sampler:
        assert found == [sampler.obtain_samples(150 if number == 0 else 40) for number in range(4)]


@pytest.mark.slow
@pytest.mark.parametrize("n_workers", [1, 2, 7])
@pytest.mark.parametrize("game", GAMES)
def test_same_batches_although_workers_are_killed_again_and_again(game: str, n_workers: int, patient: None) -> None:
    options = {"max_restarts": None, "max_lifetime_restarts": None}
    with made("processes", n_workers, game, **options) as sampler:
        killing = Killing(sampler)
        found = sampler.obtain_samples(20_000, {"red": (2,)}, progress=killing)
    assert killing.kills > 0
    with made("local", 1, game) as sampler:
        assert found == sampler.obtain_samples(20_000, {"red": (2,)})


def test_a_sampler_that_was_pickled_goes_on_with_all_policies() -> None:
    with made("local", 1, "parallel") as sampler:
        sampler.obtain_trajectories(2, {"red": (2,)})
        sampler.obtain_trajectories(2, {"green": Chooser(1)})
        with pickle.loads(pickle.dumps(sampler)) as other:
            assert other.obtain_trajectories(4, {"green": (3,)}) == sampler.obtain_trajectories(4, {"green": (3,)})


def test_exactly_so_many_of_each_worker() -> None:
    with made("processes", 2, "turns") as sampler:
        found = sampler.obtain_exact_trajectories(3)
    with made("local", 2, "turns") as sampler:
        assert found == sampler.obtain_exact_trajectories(3)
    assert found.indices.tolist() == list(range(6))


def test_amounts_count_steps_of_the_environment_or_of_all_agents() -> None:
    with made("local", 1, "parallel") as sampler:
        by_env, by_agent = sampler.obtain_samples(50), sampler.obtain_samples(50, count="agent_steps")
        for batch, amount in ((by_env, "n_env_steps"), (by_agent, "n_agent_steps")):
            assert getattr(batch, amount) >= 50
            assert getattr(batch[:-1], amount) < 50
        assert sampler.total_env_steps == by_env.n_env_steps + by_agent.n_env_steps
        with pytest.raises(streamsampler.UsageError, match="count must be one of 'env_steps', 'agent_steps', not 'x'"):
            sampler.obtain_samples(5, count="x")


@pytest.mark.parametrize("count", ["env_steps", "agent_steps"])
def test_accounts_are_of_steps_of_the_environment(count: Any) -> None:
    with made("processes", 2, "parallel", check=None) as sampler:
        for _ in range(5):
            sampler.obtain_samples(300, count=count)
    assert sampler.stats.ran_timesteps == sum(sampler.stats.worker_timesteps)


# --- Files


def test_a_file_is_the_batch(tmp_path: Path) -> None:
    for game in GAMES:
        for number, batch in enumerate(expected(game)):
            path = batch.save(tmp_path / f"{game}{number}")
            again = streamsampler.load(path)
            assert isinstance(again, MultiAgentBatch)
            assert again == batch
            assert again.save(tmp_path / "again").read_bytes() == path.read_bytes()
            assert repr(again) == repr(batch)


def test_a_file_of_a_filtered_batch(tmp_path: Path) -> None:
    with made("local", 1, "parallel", observation_filter={"red": RunningNorm()}) as sampler:
        sampler.obtain_trajectories(3)
        batch = sampler.obtain_trajectories(3)
    assert batch["red"].raw is not None
    assert streamsampler.load(batch.save(tmp_path / "x")) == batch


@pytest.mark.parametrize("infos", [False, ["t"], ["began", "n"]])
def test_infos_that_are_left_out_of_a_file(tmp_path: Path, infos: Any) -> None:
    batch = expected("parallel")[0]
    kept: Any = streamsampler.load(batch.save(tmp_path / "x", infos=infos))
    names = set(infos or ())
    assert {agent: each.tolist() for agent, each in kept.episodes.returns.items()} == {
        agent: each.tolist() for agent, each in batch.episodes.returns.items()
    }
    for each in kept.policies.values():
        found = {*each.env_infos, *each.agent_infos, *each.episode_infos}
        assert {name.removeprefix("_") for name in found} <= names
    infos_of_agents = [*kept.episodes.reset_infos.values(), *kept.episodes.last_infos.values()]
    assert {name.removeprefix("_") for each in infos_of_agents for name in each} <= names
    assert batch["red"].env_infos.keys() >= {"t", "name"}


def test_infos_that_no_file_can_hold(tmp_path: Path) -> None:
    class Odd(Comings):
        def info(self, agent: str) -> Any:
            return {"odd": {1, 2}, "t": self.t}

    with LocalSampler(agents(), Odd, seed=1, policy_of=by_turns) as sampler:
        batch = sampler.obtain_trajectories(2)
        with pytest.raises(UnwritableInfoError, match="odd"):
            batch.save(tmp_path / "x")
        with pytest.raises(UnwritableInfoError, match="odd"):
            sample_to_folder(sampler, tmp_path / "folder", n_trajectories=3, shard_size=5)
        folder: Any = sample_to_folder(sampler, tmp_path / "folder", n_trajectories=3, shard_size=5, infos=["t"])
    assert folder[0]["red"].env_infos.keys() == {"t"}


def test_a_damaged_file(tmp_path: Path) -> None:
    path = expected("parallel")[0].save(tmp_path / "x")
    data = bytearray(path.read_bytes())
    position = data.find(b"policies.red.agents.episodes")
    data[position : position + 3] = b"xxx"
    path.write_bytes(data)
    with pytest.raises(StorageError):
        streamsampler.load(path)


def test_a_folder_is_the_batch_and_may_be_resumed(tmp_path: Path) -> None:
    with made("local", 1, "turns") as sampler:
        batch = sampler.obtain_trajectories(12)
    with made("processes", 2, "turns") as sampler:
        folder = sample_to_folder(sampler, tmp_path / "x", n_trajectories=12, shard_size=40)
    assert isinstance(folder, TrajectoryFolder)
    assert len(folder.shards) > 2
    assert folder.to_batch() == batch
    assert folder[3] == batch[3]
    assert list(folder) == batch.split()
    last = sorted((tmp_path / "x").glob("shard-*.npz"))[-1]
    whole = last.read_bytes()
    forget_shards(tmp_path / "x", len(folder.shards) - 1)
    with made("local", 3, "turns") as sampler:
        sample_to_folder(sampler, tmp_path / "x", n_trajectories=12, shard_size=40, resume=True)
    assert last.read_bytes() == whole


# --- Parts and wholes


def test_parts_of_a_batch_are_batches() -> None:
    for batch in (*expected("parallel"), *expected("turns")):
        parts = batch.split()
        assert TrajectoryBatch.concatenate(parts) == batch
        assert TrajectoryBatch.concatenate(batch[:2], batch[2:]) == batch
        backwards = batch[::-1]
        assert [one.seeds for one in backwards] == [one.seeds for one in parts[::-1]]
        assert backwards[::-1] == batch
        assert batch[[1, 1]][0] == batch[[1, 1]][1] == batch[1]
        assert batch[batch.lengths > 0] == batch
        assert len(batch[:0]) == 0
        assert [batch[i] for i in range(len(batch))] == parts


def test_what_batches_of_policies_can_do() -> None:
    batch = expected("turns")[0]
    red = batch["red"]
    assert red.padded("observations").shape[:2] == (len(red), red.lengths.max())
    assert sum(len(rows) for rows in red.minibatches(10, seed=1)) == red.n_timesteps
    assert red.returns_to_go(0.9, red.returns).shape == (red.n_timesteps,)
    assert (
        TrajectoryBatch.from_list(red.to_list(), red.observation_space, red.action_space).returns.tolist()
        == red.returns.tolist()
    )
    assert len(red[2:4].agent_ids) == 2
    with pytest.raises(KeyError, match="policy 'x' played no agent here; those that did: 'blue', 'green', 'red'"):
        batch["x"]
    for name in ("advantages", "minibatches", "padded", "to_torch", "next_observations"):
        with pytest.raises(AttributeError, match=rf"no {name} of its own: batch\['blue'\].{name}"):
            getattr(batch, name)
    with pytest.raises(streamsampler.DataError, match="of several agents"):
        _ = LocalSampler("random", "CartPole-v1").obtain_trajectories(1).agent_ids


# --- The environment


def test_parameters_are_set_before_the_reset() -> None:
    class Scaled(Comings):
        scale = 1.0

        def step(self, actions: Any) -> Any:
            observations, rewards, *rest = super().step(actions)
            return observations, {agent: reward * self.scale for agent, reward in rewards.items()}, *rest

    with LocalSampler(agents(), SetParameters({"scale": 3.0}, Scaled), seed=SEED, policy_of=by_turns) as sampler:
        batch = sampler.obtain_trajectories(3)
        tasks = sampler.obtain_trajectories(
            2, env_update=Scaled, tasks=[SetParameters({"scale": 1.0}), SetParameters({"scale": 2.0})]
        )
    with LocalSampler(agents(), Scaled, seed=SEED, policy_of=by_turns) as sampler:
        assert (batch.returns == 3 * sampler.obtain_trajectories(3).returns).all()
        assert tasks.episodes.infos["task_index"].tolist() == [0, 0, 1, 1]
        assert (tasks.returns == sampler.obtain_trajectories(4).returns * [1, 1, 2, 2]).all()
    assert batch.episodes.infos["parameters"]["scale"].tolist() == [3.0] * 3


def test_an_environment_is_taken_in_all_forms() -> None:
    with LocalSampler(agents(), Comings, seed=SEED, policy_of=by_turns) as sampler:
        batch = sampler.obtain_trajectories(3)
    for env in (
        Comings(),
        lambda: Comings(),
        [Comings],
        streamsampler.NewEnvUpdate(Comings),
        streamsampler.ExistingEnvUpdate(Comings()),
    ):
        with LocalSampler(agents(), env, seed=SEED, policy_of=by_turns) as sampler:
            assert sampler.obtain_trajectories(3) == batch
            again = sampler.obtain_trajectories(3)
            assert sampler.obtain_trajectories(3, env_update=Turns) != again
    with LocalSampler(
        agents(), "tests.several.test_reproducible:parallel_env", seed=SEED, policy_of=by_turns
    ) as sampler:
        assert sampler.obtain_trajectories(3) == batch
    with LocalSampler(agents(), "CartPole-v1", seed=SEED) as sampler:
        with pytest.raises(streamsampler.RolloutError, match="for environments of several agents"):
            sampler.obtain_trajectories(3)
        assert len(sampler.obtain_trajectories(3, env_update=Comings)["red"]) == 6
    with LocalSampler("random", "CartPole-v1", seed=SEED) as sampler:
        assert isinstance(sampler.obtain_trajectories(3), TrajectoryBatch)
        assert sampler.obtain_trajectories(3, env_update=Comings)["shared"].n_timesteps > 20
        assert not isinstance(sampler.obtain_trajectories(3, env_update="CartPole-v1"), MultiAgentBatch)


def parallel_env() -> Comings:
    return Comings()
