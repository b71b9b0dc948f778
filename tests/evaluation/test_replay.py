"""Trajectories that are run again: the same, bit for bit, or what differs first and why."""

from __future__ import annotations

import dataclasses
import random
from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import (
    DefaultWorker,
    LocalSampler,
    PerWorker,
    RolloutError,
    UsageError,
    VecWorker,
    replay,
    sample_to_folder,
)
from tests.evaluation.envs import Known
from tests.scripted.agents import Attentive, Drawing, Linear, Rowwise, Sampling, Stamping, always_zero
from tests.scripted.envs import Counting, GlobalNoise, Nested, Rough, Steps
from tests.scripted.vectors import Vector
from tests.tiers import mostly_slow


def vec(n_envs: int = 3, **args: Any) -> dict[str, Any]:
    return {"worker_class": VecWorker, "worker_args": {"n_envs": n_envs, **args}}


class Crowd:
    """Looks at all rows of its batch, silent ones included: a block that was cut is another one."""

    def get_action(self, observation: Any) -> Any:
        raise AssertionError("it has get_actions")

    def get_actions(self, observations: Any) -> Any:
        total = int(np.abs(observations[:, 2:].sum(dtype=np.float64)) * 1e6)
        return (np.arange(len(observations)) + total) % 2, {}


class Picky(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Begins from all seeds but some."""

    def __init__(self, wrong: list[int]) -> None:
        super().__init__(gymnasium.make("CartPole-v1"))
        self.wrong = wrong

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed in self.wrong:
            raise ValueError(f"not from {seed}")
        return super().reset(seed=seed, options=options)


class Born(Steps):
    """Draws its rewards when it is made."""

    def __init__(self) -> None:
        super().__init__()
        self.reward = float(np.random.random())

    def step(self, action: Any) -> Any:
        observation, _, *ends = super().step(action)
        return observation, self.reward, *ends


FORMS: dict[str, Any] = {
    "default": (Drawing(), GlobalNoise, {}),
    "lanes": (Rowwise(), "CartPole-v1", vec()),
    "vector with masks": (lambda _: 0, Vector("DISABLED"), vec(block_size=7)),
    "crowd": (Crowd(), "CartPole-v1", vec()),
    "long blocks": (Crowd(), "CartPole-v1", vec(block_size=5)),
    "constructors": ("random", Born, {}),
    "limited": (Attentive(), Nested, {"max_episode_length": 3}),
    "vector": (lambda _: 0, Vector("NEXT_STEP"), vec()),
}
QUICK = "default", "lanes", "vector with masks"


@pytest.mark.parametrize("form", [it if it in QUICK else pytest.param(it, marks=pytest.mark.slow) for it in FORMS])
@pytest.mark.slow
def test_each_trajectory_of_each_amount_is_the_same(form, tmp_path):
    agent, env, options = FORMS[form]
    with LocalSampler(agent, env, seed=3, check=None, **options) as sampler:
        for obtain in (sampler.obtain_samples, sampler.obtain_trajectories):
            batch = obtain(11)
            for index in batch.indices.tolist():
                found = sampler.replay(sampler.agent_version, index, recorded=batch)
                assert found.same, found
                assert found.trajectory == batch[batch.indices == index]
            path = batch.save(tmp_path / "a", provenance=sampler.provenance())
            assert all(replay(path, index, agent=agent, env=env).same for index in batch.indices.tolist())


def test_a_block_is_what_differs_without_its_neighbours():
    """The test above shows something: a trajectory of a block is another one alone."""
    with LocalSampler(Sampling(), "CartPole-v1", seed=3, **vec()) as sampler:
        batch = sampler.obtain_trajectories(6)
    assert not replay(batch, 4, agent=Sampling(), env="CartPole-v1").same
    assert replay(batch, 4, agent=Sampling(), env="CartPole-v1", **vec()).same


def test_versions_are_replayed_by_their_parameters():
    with LocalSampler(Linear(), "CartPole-v1", seed=3) as sampler:
        first = sampler.obtain_trajectories(3, agent_update=(0.1, 0, 2, 3))
        second = sampler.obtain_trajectories(3, agent_update=(-1, 0, 2, 3))
        assert sampler.replay(2, 1, recorded=second).same
        assert sampler.replay(1, 1, recorded=first, agent=(0.1, 0, 2, 3)).same
        with pytest.raises(UsageError, match="has the agent of version 2: pass agent="):
            sampler.replay(1, 1, recorded=first)
        wrong = sampler.replay(1, 1, recorded=first, agent=(-1, 0, 2, 3))
        assert wrong.difference.what == "action"
        assert "another agent, or other parameters" in wrong.reasons[0]
        assert sampler.replay(1, 1, recorded=first, actions=True).same
        assert sampler.obtain_trajectories(2).n_trajectories == 2, "the workers were not disturbed"
    both = type(first).concatenate([first, second])
    given: Any = {"agent": Linear(), "env": "CartPole-v1"}
    with pytest.raises(UsageError, match="more than once, in agent versions 1, 2: pass version="):
        replay(both, 1, **given)
    assert all(replay(both, 1, version=v, env="CartPole-v1", actions=True).same for v in (1, 2))
    with pytest.raises(UsageError, match="agent version 3 does not exist: the batch has agent versions 1, 2"):
        replay(both, 1, version=3, **given)


@pytest.mark.parametrize("kind", ["obtain_samples", "obtain_trajectories", "obtain_exact_trajectories"])
def test_both_batches_of_a_version_with_a_lag(kind):
    """The sampler's agent is that of both; the second batch's trajectories have other indices."""
    agents = [Drawing(1), Drawing(2)]
    with LocalSampler(agents, GlobalNoise, n_workers=2, seed=3, staleness=1, check=None) as sampler:
        first, second = (getattr(sampler, kind)(5) for _ in range(2))
        both = type(first).concatenate([first, second])
        for batch in (first, second):
            for index in batch.indices.tolist():
                assert sampler.replay(1, index, recorded=batch).same
                assert sampler.replay(1, index, recorded=both).same
        assert len(sampler.replay(1, 0).trajectory) == 1
        with pytest.raises(UsageError, match="trajectory 99 of agent version 1 does not exist"):
            sampler.replay(1, 99, recorded=both)


@pytest.mark.parametrize(
    ("agent", "env", "size"), mostly_slow([(always_zero, Vector("NEXT_STEP"), 7), (Crowd(), "CartPole-v1", 5)])
)
def test_blocks_that_begin_with_a_batch(agent, env, size, tmp_path):
    """As the second one of a version does; also when later calls are over, and from a file."""
    options: dict[str, Any] = vec(block_size=size)
    with LocalSampler(agent, env, seed=3, staleness=1, check=None, **options) as sampler:
        batches = [sampler.obtain_trajectories(9) for _ in range(2)]
        both = type(batches[0]).concatenate(batches)
        for recorded, indices in ((both, range(9)), (batches[1], range(9, 18))):
            assert all(sampler.replay(1, index, recorded=recorded).same for index in indices)
        sampler.obtain_trajectories(9)
        for batch in batches:
            for index in batch.indices.tolist():
                assert sampler.replay(1, index, recorded=batch, agent=agent).same
    path = batches[1].save(tmp_path / "second")
    assert all(replay(path, index, agent=agent, env=env, **options).same for index in range(9, 18))


def test_what_would_raise_next_does_not_count():
    """The rest of a block that was cut was not sampled."""
    with LocalSampler(Crowd(), "CartPole-v1", seed=3, **vec(block_size=5)) as sampler:
        wrong = sampler.seeds(1, [7])
        batch = sampler.obtain_trajectories(6, env_update=partial(Picky, wrong))
        sampler.obtain_trajectories(1)
        assert sampler.replay(1, 5, recorded=batch, agent=Crowd()).same


def test_the_global_generators_are_as_before():
    with LocalSampler(Drawing(), GlobalNoise, seed=3) as sampler:
        batch = sampler.obtain_trajectories(2)
        before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
        sampler.replay(1, 1, recorded=batch)
        assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]


@pytest.mark.parametrize("options", [{}, vec(2)])
def test_workers_with_agents_of_their_own(options):
    with LocalSampler([Stamping(1), Stamping(2)], Counting, n_workers=2, seed=3, check=None, **options) as sampler:
        batch = sampler.obtain_trajectories(9)
        for index in range(9):
            found = sampler.replay(1, index, recorded=batch)
            assert found.same, found
            assert found.trajectory.actions[0] == 1 + index % 2
        exact = sampler.obtain_exact_trajectories(2, env_update=PerWorker([Counting(5), Counting(9)]))
        assert all(sampler.replay(2, index, recorded=exact).same for index in range(4))
        sampler.obtain_trajectories(1)
        agents = PerWorker([Stamping(1), Stamping(2)])
        assert all(sampler.replay(2, index, recorded=exact, agent=agents).same for index in range(4))


def test_seeds_and_options_that_were_given():
    seeds, options = [5, 5, 8], [{"level": 1.0}, {"level": 2.0}, None]
    with LocalSampler("random", Known, seed=3) as sampler:
        batch = sampler.obtain_trajectories(seeds=seeds, reset_options=options)
        assert [sampler.replay(1, index).trajectory == batch[index] for index in range(3)] == [True] * 3
        assert replay(batch, 1, agent="random", env=Known, reset_options={"level": 2.0}).same
    given, env = vec(block_size=7), Vector("SAME_STEP")
    with LocalSampler(lambda _: 0, env, seed=3, check=None, **given) as sampler:
        batch = sampler.obtain_trajectories(seeds=range(50, 60))
        assert all(sampler.replay(1, index, recorded=batch).same for index in range(10))
    assert all(replay(batch, index, agent=lambda _: 0, env=env, **given).same for index in range(10))
    with pytest.raises(
        UsageError,
        match=r"recorded actions can only be replayed in an environment that is not vectorised.* a vector environment",
    ):
        replay(batch, 0, actions=True, env=env)


def test_what_raises_raises_again_and_folders_are_searched_for_the_shard(tmp_path):
    with LocalSampler(Drawing(), Rough, seed=3, check=None, on_failure="drop") as sampler:
        batch = sampler.obtain_trajectories(9)
        left_out = next(index for index in range(9) if index not in batch.indices)
        with pytest.raises(RolloutError, match=f"while stepping the environment in trajectory {left_out}.*on purpose"):
            sampler.replay(1, left_out)
        with pytest.raises(
            UsageError, match=f"trajectory {left_out} of agent version 1 does not exist: it raised and was dropped"
        ):
            sampler.replay(1, left_out, recorded=batch)
        last = int(batch.indices[-1])
        assert last >= 9, "it took the place of another one"
        assert sampler.replay(1, last, recorded=batch).same
    with LocalSampler(Drawing(), Rough, seed=3, check=None, on_failure="drop") as sampler:
        folder = sample_to_folder(sampler, tmp_path / "a", n_trajectories=20, shard_size=20)
        dropped = min(each.index for each in sampler.stats.dropped)
    assert len(folder.shards) > 2
    assert all(replay(folder, index, agent=Drawing(), env=Rough).same for index in folder.to_batch().indices.tolist())
    with pytest.raises(UsageError, match=f"trajectory {dropped} does not exist: it raised and was dropped"):
        replay(tmp_path / "a", dropped, agent=Drawing(), env=Rough)
    with pytest.raises(UsageError, match="trajectory 99 does not exist: the folder has trajectories 0 to"):
        replay(tmp_path / "a", 99, agent=Drawing(), env=Rough)


class Hidden(Steps):
    """Counts its trajectories, and shows them in rewards."""

    n = 0

    def reset(self, **arguments: Any) -> Any:
        self.n += 1
        return super().reset(**arguments)

    def step(self, action: Any) -> Any:
        observation, _, *ends = super().step(action)
        return observation, float(self.n if self.t == 2 else 0), *ends


def test_an_environment_with_a_hidden_state_is_found():
    with LocalSampler("random", Hidden, seed=3, check=None) as sampler:
        batch = sampler.obtain_trajectories(3)
        found = sampler.replay(1, 2, recorded=batch)
    assert (found.difference.timestep, found.difference.what) == (1, "reward")
    assert (found.difference.recorded, found.difference.replayed) == (3.0, 1.0)
    assert found.reasons[0].startswith(
        "the agent or the environment depends on more than its seed: two runs in a row differ"
    )
    assert "the reward of timestep 1: recorded 3.0, now 1.0" in str(found)
    actions = replay(batch, 2, env=Hidden, actions=True)
    assert actions.difference == found.difference
    assert actions.reasons[0].startswith("the environment depends on more than its seed")


def test_actions_alone_tell_how_the_environment_goes_on():
    with LocalSampler("random", partial(Steps, 4), seed=3) as sampler:
        batch = sampler.obtain_trajectories(2)
    assert replay(batch, 1, env=partial(Steps, 4), actions=True).same
    longer = replay(batch, 1, env=partial(Steps, 9), actions=True)
    assert (longer.difference.replayed, len(longer.trajectory.rewards)) == ("it continues", 5)
    assert replay(batch, 1, env=partial(Steps, 2), actions=True).difference.recorded == "it continues"
    with pytest.raises(UsageError, match="without an agent: leave it out"):
        replay(batch, 1, env=Steps, agent="random", actions=True)


@pytest.mark.parametrize("options", [{}, vec()])
def test_a_limit_that_is_not_known_cuts_the_comparison(options, tmp_path):
    """In a block others go on, too, but what was recorded of its first trajectories does not depend on that."""
    env = partial(Steps, 9)
    with LocalSampler(lambda _: 0, env, seed=3, max_episode_length=4, **options) as sampler:
        batch = sampler.obtain_trajectories(3)
        path = batch.save(tmp_path / "new", provenance=sampler.provenance())
    ways: list[dict[str, Any]] = [{"agent": lambda _: 0}, *([] if options else [{"actions": True}])]
    for how in ways:
        found = replay(batch.save(tmp_path / "old"), 2, env=env, **how, **options)
        assert found.same
        assert len(found.trajectory.rewards) == (9 if options else len(found.trajectory.rewards))
        assert "max_episode_length is unknown" in str(found)
        assert not replay(batch, 2, max_episode_length=9, env=env, **how, **options).same
        assert not replay(path, 2, env=env, **how).notes


def test_kernels_and_versions_are_named_where_they_differ(tmp_path):
    with LocalSampler("random", "CartPole-v1", seed=3) as sampler:
        batch = sampler.obtain_trajectories(1)
        told = sampler.provenance()
    told |= {"fingerprints": ["numpy=000000000000"], "versions": {**told["versions"], "gymnasium": "0.9"}}
    path = dataclasses.replace(batch, rewards=batch.rewards + 1e-9).save(tmp_path / "a", provenance=told)
    kernels, versions, *_ = replay(path, 0, agent="random").reasons
    assert kernels.startswith("other kernels")
    assert versions == f"other versions: gymnasium 0.9 for the record, {gymnasium.__version__} here"


@pytest.mark.parametrize(
    ("facts", "options", "message"),
    [
        ({}, {"agent": "random"}, "has no environment recorded: pass env="),
        ({"environment": "CartPole-v1"}, {}, "the agent is missing: pass agent="),
        ({"environment": "CartPole-v1", "agent": "mine:it"}, {}, "it was 'mine:it'"),
        ({"environment": "make_env"}, {"agent": "random"}, "'make_env', which is not registered: pass env="),
        ({"environment": "antigravity:A-v0"}, {"agent": "random"}, "must not decide which module is imported"),
        ({"environment": ["a", "b"]}, {"agent": "random"}, "had several environments"),
        ({"worker_class": "mine:Worker"}, {"agent": "random", "env": "CartPole-v1"}, "pass worker_class="),
        ({}, {"agent": "random", "env": "CartPole-v1", "n_trajectories": 1}, "trajectory 1 does not exist"),
    ],
)
def test_what_is_missing_is_named(facts, options, message, tmp_path):
    with LocalSampler("random", "CartPole-v1", seed=3) as sampler:
        path = sampler.obtain_trajectories(2).save(tmp_path / "a", provenance=facts)
    with pytest.raises(UsageError, match=message):
        replay(path, 1, **options)


class Own(DefaultWorker):
    """A worker from outside the package."""


def test_what_a_file_says_is_used_and_what_is_given_wins(tmp_path):
    kwargs = {"is_slippery": False, "max_episode_steps": 5}
    with LocalSampler("random", "FrozenLake-v1", seed=3, env_kwargs=kwargs, worker_class=Own) as sampler:
        batch, told = sampler.obtain_trajectories(4), {**sampler.provenance(), "agent": "random"}
    path = batch.save(tmp_path / "a", provenance=told)
    own = replay(path, 3, worker_class=Own)
    assert (own.same, own.notes) == (True, ())
    assert replay(path, 3, env="FrozenLake-v1", worker_class=Own).same
    assert replay(path, 1, worker_class=DefaultWorker).notes
    given: Any = {"env_kwargs": {"max_episode_steps": 2}, "worker_class": Own}
    assert not all(replay(path, index, **given).same for index in range(4))
    # As `streamsampler sample --vec` writes files.
    with LocalSampler(Sampling(), "CartPole-v1", seed=3, **vec(4)) as sampler:
        batch = sampler.obtain_trajectories(6)
    told = {"environment": "CartPole-v1", "env_kwargs": {}, "vec": 4, "max_episode_length": None, "worker_threads": 1}
    path = batch.save(tmp_path / "a", provenance=told)
    assert all(replay(path, index, agent=Sampling()).same for index in range(6))


def test_bad_arguments(tmp_path):
    with LocalSampler("random", "CartPole-v1", seed=3) as sampler:
        with pytest.raises(UsageError, match="has not sampled anything yet"):
            sampler.replay(1, 0)
        with pytest.raises(UsageError, match="needs the recorded trajectory"):
            sampler.replay(1, 0, actions=True)
        sampler.obtain_trajectories(2)
        with pytest.raises(UsageError, match="trajectory 2 does not exist: the call had trajectories 0 to 1"):
            sampler.replay(1, 2)
    with pytest.raises(UsageError, match="a file, a folder or a batch"):
        replay(5, 0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="no argument 'n_workers'"):
        replay(tmp_path, 0, n_workers=3)  # type: ignore[call-arg]
    with pytest.raises(FileNotFoundError):
        replay(tmp_path / "none.npz", 0)


@pytest.mark.parametrize("options", [{}, vec(2, block_size=4)])
def test_a_trajectory_that_arrived_first_is_replayed_whatever_its_index(options):
    """A batch of six has the first six that arrive, whose indices may be any."""
    with LocalSampler(Rowwise(), "CartPole-v1", seed=3, **options) as sampler:
        expected = sampler.obtain_trajectories(12)
    with LocalSampler(Rowwise(), "CartPole-v1", seed=3, order="arrival", **options) as sampler:
        sampler.obtain_trajectories(6)
        for index in (2, 9, 11):
            assert sampler.replay(1, index, recorded=expected).same
    with LocalSampler(Rowwise(), "CartPole-v1", seed=3, **options) as sampler:
        sampler.obtain_trajectories(6)
        with pytest.raises(UsageError, match="trajectory 9 does not exist: the call had trajectories 0 to 5"):
            sampler.replay(1, 9)
