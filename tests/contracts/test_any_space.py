"""Any space of Gymnasium, and custom ones, as observations and as actions, in every kind of worker: the same bits."""

from __future__ import annotations

import functools
from typing import Any

import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from streamsampler import (
    LocalSampler,
    MultiprocessingSampler,
    TrajectoryFolder,
    VecWorker,
    evaluate,
    load,
    replay,
    sample_to_folder,
)
from streamsampler.data.trees import same
from streamsampler.errors import RolloutError
from streamsampler.testing import Fault, Faults
from tests.patience import closing_patiently
from tests.scripted.kinds import PAIRS, Kinds, RowsAsked
from tests.tiers import mostly_slow

SEED = 3
FIELDS = ["observations", "last_observations", "actions", "rewards", "terminated", "truncated", "lengths", "seeds"]


class Hook:
    def on_timestep(self, context: Any) -> None:
        """Have the loops that call hooks run."""


def three(env: Any, mode: Any = AutoresetMode.NEXT_STEP) -> Any:
    return lambda: SyncVectorEnv([env] * 3, autoreset_mode=mode)


SIDE_BY_SIDE: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
IN_PARENT: dict[str, Any] = {"inference": "parent", "worker_args": {"n_envs": 4}}
# Of each kind of workers: the sampler's arguments, and what the agent says of its rows.
WORKERS: dict[str, tuple[dict[str, Any], bool]] = {
    "lanes": (SIDE_BY_SIDE, True),
    "parent": (IN_PARENT, True),
    "parent, hooks": ({**IN_PARENT, "hooks": Hook()}, True),
    "parent, blocks": (IN_PARENT, False),
    "parent, groups": ({"inference": "parent", "worker_args": {"n_envs": 4, "groups": 2}}, True),
    "processes": ({}, True),
    "queues": ({"engine": "queues"}, True),
    "hooks": ({"hooks": Hook()}, True),
    "blocks": (SIDE_BY_SIDE, False),
    "lanes, hooks": ({**SIDE_BY_SIDE, "hooks": Hook()}, True),
}
pairs = pytest.mark.parametrize(("shown", "sent"), mostly_slow(PAIRS, 2))


@functools.cache
def expected(shown: str, sent: str) -> list[Any]:
    with LocalSampler(RowsAsked(sent), functools.partial(Kinds, shown, sent), seed=SEED) as sampler:
        return batches_of(sampler)


def batches_of(sampler: Any) -> list[Any]:
    whole = [sampler.obtain_trajectories(n) for n in (9, 5)]
    return [*whole, *(sampler.obtain_fragments(7, n_envs=4) for _ in range(3))]


def assert_same(batches: list[Any], others: list[Any]) -> None:
    for batch, other in zip(batches, others, strict=True):
        for field in FIELDS:
            assert same(getattr(batch, field), getattr(other, field)), field


@pairs
@pytest.mark.parametrize("workers", mostly_slow(WORKERS, 2))
def test_in_every_kind_of_worker(shown, sent, workers):
    options, row_independent = WORKERS[workers]
    agent, env = RowsAsked(sent, row_independent), functools.partial(Kinds, shown, sent)
    with MultiprocessingSampler(agent, env, seed=SEED, n_workers=2, **closing_patiently(options)) as sampler:
        assert_same(batches_of(sampler), expected(shown, sent))


@pairs
@pytest.mark.parametrize("options", [IN_PARENT, pytest.param({}, marks=pytest.mark.slow)], ids=["parent", "worker"])
def test_whatever_is_killed(shown, sent, options, tmp_path):
    faults = Faults(tmp_path, *(Fault("kill", "step", step=step) for step in (1, 2, 4)))
    env = faults.env(functools.partial(Kinds, shown, sent))
    with MultiprocessingSampler(
        RowsAsked(sent), env, seed=SEED, n_workers=2, max_restarts=None, **closing_patiently(options)
    ) as sampler:
        assert_same(batches_of(sampler), expected(shown, sent))
    assert faults.fired() == 3


@pytest.mark.parametrize(("shown", "sent"), mostly_slow([it for it in PAIRS if "things" not in it]))
@pytest.mark.parametrize("mode", mostly_slow(AutoresetMode))
def test_native_vector_environments(shown, sent, mode):
    """Gymnasium compares the spaces of its environments, and takes custom ones only if they have an `==`."""
    env = three(functools.partial(Kinds, shown, sent), mode)
    with LocalSampler(RowsAsked(sent), env, seed=SEED, **SIDE_BY_SIDE) as sampler:
        assert_same([sampler.obtain_trajectories(9)], expected(shown, sent)[:1])


@pytest.mark.parametrize(("shown", "sent"), mostly_slow([it for it in PAIRS if "things" not in it]))
def test_files_and_replays(shown, sent, tmp_path):
    agent, env = RowsAsked(sent), functools.partial(Kinds, shown, sent)
    batch = expected(shown, sent)[0]
    batch.save(tmp_path / "batch.npz")
    assert_same([load(tmp_path / "batch.npz")], [batch])
    with LocalSampler(agent, env, seed=SEED) as sampler:
        sample_to_folder(sampler, tmp_path / "folder", n_trajectories=9, shard_size=4)
    assert_same([TrajectoryFolder(tmp_path / "folder").to_batch()], [batch])
    assert replay(tmp_path / "batch.npz", 2, agent=agent, env=env).same
    assert replay(batch, 2, env=env, actions=True).same


@pytest.mark.slow
@pytest.mark.parametrize(("shown", "sent"), PAIRS)
def test_a_lag_and_evaluations(shown, sent):
    agent, env = RowsAsked(sent), functools.partial(Kinds, shown, sent)
    lagging = []
    for n_workers in (1, 2):
        with MultiprocessingSampler(agent, env, seed=SEED, n_workers=n_workers, staleness=1) as sampler:
            lagging.append([sampler.obtain_trajectories(4) for _ in range(3)])
    assert_same(*lagging)
    returns = [evaluate(agent, env, seeds=range(6), n_workers=n_workers).returns for n_workers in (None, 2)]
    assert same(*returns)


class Wordless(Kinds):
    """Shows what is no string, after a while."""

    def drawn(self) -> Any:
        return super().drawn() if getattr(self, "t", 0) < 2 else 5


class Locked(Kinds):
    """Shows what cannot be pickled in the end, when no agent looks at it."""

    def drawn(self) -> Any:
        return super().drawn() if self.t < self.length else iter(self.lines())

    def lines(self) -> Any:
        yield 1


ERRORS = {Wordless: "observation should be a str, .*int 5", Locked: "cannot be pickled: TypeError: cannot pickle"}


@pytest.mark.parametrize(("env", "match"), ERRORS.items())
@pytest.mark.parametrize("options", [IN_PARENT, {}], ids=["parent", "worker"])
def test_what_cannot_be(env, match, options):
    kind = "text" if env is Wordless else "things"
    with (
        MultiprocessingSampler(
            RowsAsked("number"), functools.partial(env, kind, "number"), seed=SEED, n_workers=1, check=None, **options
        ) as sampler,
        pytest.raises(RolloutError, match=match),
    ):
        sampler.obtain_trajectories(3)


class Wrong:
    """Chooses what is in no mission."""

    row_independent = True

    def get_action(self, observation: Any) -> Any:
        return "stay", {}

    def get_actions(self, observations: Any) -> Any:
        return ["stay"] * len(observations), {}


@pytest.mark.parametrize("options", [IN_PARENT, SIDE_BY_SIDE, {}], ids=["parent", "lanes", "worker"])
def test_an_action_outside_its_space(options):
    match = r"action is outside its space: str 'stay' is not in .*Mission"
    with (
        MultiprocessingSampler(
            Wrong(), functools.partial(Kinds, "number", "mission"), seed=SEED, n_workers=1, **options
        ) as sampler,
        pytest.raises(RolloutError, match=match),
    ):
        sampler.obtain_trajectories(3)
