"""Environments of several agents that wait: the batches of their twins, bit for bit."""

from __future__ import annotations

import asyncio
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import streamsampler
from streamsampler import RolloutError
from tests.patience import closing_patiently
from tests.scripted.games import Comings, Turns
from tests.several.comparing import LocalSampler
from tests.several.test_fragments import Knowing
from tests.several.test_lives import Crowd
from tests.several.test_rows import Neighbourly, Rowwise
from tests.tiers import mostly_slow
from tests.workers.waiting.test_fragments import Sums

MultiprocessingSampler: Any = streamsampler.MultiprocessingSampler


class _Waits:
    """Waits for a time that depends on the process and on nothing that a trajectory is."""

    is_closed = False

    async def _wait(self) -> None:
        dice = vars(self).setdefault("dice", np.random.default_rng(os.getpid()))
        await asyncio.sleep(dice.uniform(0, 3e-4))

    async def reset(self, **arguments: Any) -> Any:
        await self._wait()
        return super().reset(**arguments)  # type: ignore[misc]

    async def step(self, actions: Any) -> Any:
        await self._wait()
        return super().step(actions)  # type: ignore[misc]

    async def close(self) -> None:
        await self._wait()
        super().close()  # type: ignore[misc]


Later: Any = _Waits  # or its methods are not those of the games, for type checkers


class ComingsLater(Later, Comings):
    """Agents act at once."""


class TurnsLater(Later, Turns):
    """Agents act in turn."""


class CrowdLater(Later, Crowd):
    """Any agents may appear."""


class KnowingLater(Knowing):
    """A policy with a memory, which waits."""

    async def get_action(self, observation: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(1e-4)
        return super().get_action(observation)


class RowwiseLater(Rowwise):
    """Is asked for all agents of an environment that it plays, and waits."""

    async def get_actions(self, observations: Any, *, draws: Any, seeds: Any) -> Any:
        await asyncio.sleep(1e-4)
        return super().get_actions(observations, draws=draws, seeds=seeds)


GAMES: Any = pytest.mark.parametrize("games", [(ComingsLater, Comings), (TurnsLater, Turns)], ids=["once", "in turn"])
AGENTS: dict[str, tuple[Any, Any]] = {
    "plain": ({"red": Knowing(), "blue": Rowwise()},) * 2,
    "later": ({"red": KnowingLater(), "blue": RowwiseLater()}, {"red": Knowing(), "blue": Rowwise()}),
    "one": (KnowingLater(), Knowing()),
    "rows": ({"red": Neighbourly(), "blue": Knowing(2)},) * 2,
}


def make(kind: Any, agents: Any, env: Any, in_flight: int = 5, **options: Any) -> Any:
    if kind is MultiprocessingSampler:
        options = closing_patiently(options)
    return kind(agents, env, seed=3, worker_args={"in_flight": in_flight}, **options)


def twin(agents: Any, env: Any, **options: Any) -> Any:
    return LocalSampler(agents, env, seed=3, **options)


KINDS = [(LocalSampler, {}), *((MultiprocessingSampler, {"n_workers": n}) for n in (1, 2))]


@pytest.mark.parametrize("hooks", mostly_slow([Sums(), None]))
@pytest.mark.parametrize("in_flight", mostly_slow([3, 1, 50]))
@pytest.mark.parametrize("name", mostly_slow(AGENTS))
@pytest.mark.parametrize(("kind", "options"), mostly_slow(KINDS))
@GAMES
def test_batches_are_those_of_the_twin(
    games: Any, kind: Any, options: Any, name: str, in_flight: int, hooks: Any
) -> None:
    agents = AGENTS[name]
    with (
        make(kind, agents[0], games[0], in_flight, hooks=hooks, **options) as sampler,
        twin(agents[1], games[1], hooks=hooks) as expected,
    ):
        for call in (
            lambda it: it.obtain_trajectories(9),
            lambda it: it.obtain_samples(40),
            lambda it: it.obtain_fragments(5, 4),
            lambda it: it.obtain_trajectories(3),
            lambda it: it.obtain_fragments(3),
            lambda it: it.obtain_fragments(9),
        ):
            assert call(sampler) == call(expected)


@GAMES
def test_updates_of_policies(games: Any) -> None:
    updates = (None, {"red": (1,)}, {"blue": (2,)}, {"red": Knowing(1)}, {"blue": Rowwise(1), "red": (3,)})
    agents = AGENTS["plain"][0]
    with make(MultiprocessingSampler, agents, games[0], n_workers=2) as sampler, twin(agents, games[1]) as expected:
        for update in updates:
            assert sampler.obtain_trajectories(5, agent_update=update) == expected.obtain_trajectories(
                5, agent_update=update
            )
            assert sampler.obtain_fragments(4, 3, update) == expected.obtain_fragments(4, 3, update)


@pytest.mark.parametrize("agent", [Knowing(), KnowingLater()], ids=["plain", "waits"])
def test_any_agents_may_appear(agent: Any) -> None:
    with make(LocalSampler, agent, CrowdLater) as sampler, twin(Knowing(), Crowd) as expected:
        for obtained in (lambda it: it.obtain_trajectories(7), lambda it: it.obtain_fragments(5, 4)):
            assert obtained(sampler) == obtained(expected)


@pytest.mark.parametrize("in_flight", mostly_slow([1, 6]))
def test_on_threads(in_flight: int) -> None:
    agents = AGENTS["later"]
    options = {"worker_args": {"in_flight": in_flight, "threads": True}}
    for game in (Comings, Turns):
        with LocalSampler(agents[0], game, seed=3, **options) as sampler, twin(agents[1], game) as expected:
            assert sampler.obtain_trajectories(7) == expected.obtain_trajectories(7)
            assert sampler.obtain_fragments(5, 4) == expected.obtain_fragments(5, 4)


@GAMES
def test_episodes_of_a_killed_worker_are_restored(games: Any) -> None:
    agents = AGENTS["later"]
    with make(MultiprocessingSampler, agents[0], games[0], n_workers=2) as sampler, twin(agents[1], games[1]) as other:
        for number in range(4):
            if number % 2:
                os.kill(sampler.worker_pids()[number // 2], signal.SIGKILL)
            assert sampler.obtain_fragments(5, 6) == other.obtain_fragments(5, 6)
            assert sampler.obtain_trajectories(5) == other.obtain_trajectories(5)
        assert sampler.stats.restarts == 2


class Breaks(Comings):
    """Raises in some trajectories."""

    def step(self, actions: Any) -> Any:
        if self.t == 3 and self.total % 5 == 0:
            raise ValueError(f"broken at a total of {self.total}")
        return super().step(actions)


class BreaksLater(Later, Breaks):
    """Does so after a wait."""


class ForgetsActions(KnowingLater):
    """Returns no tuple after a while."""

    async def get_action(self, observation: Any) -> Any:  # type: ignore[override]
        chosen = await super().get_action(observation)
        return chosen if self.n < 3 else chosen[0]


@pytest.mark.parametrize("in_flight", mostly_slow([1, 6]))
def test_what_raises(in_flight: int) -> None:
    with make(LocalSampler, KnowingLater(), BreaksLater, in_flight) as sampler:
        with pytest.raises(RolloutError, match="broken at a total of") as raised:
            sampler.obtain_trajectories(20)
        with twin(Knowing(), Breaks) as other, pytest.raises(RolloutError) as expected:
            other.obtain_trajectories(20)
        assert str(raised.value).partition("(")[0] == str(expected.value).partition("(")[0]
    with (
        make(LocalSampler, ForgetsActions(), ComingsLater, in_flight) as sampler,
        pytest.raises(RolloutError, match=r"must return \(action, agent_info\).*agent 'red_0' was to act"),
    ):
        sampler.obtain_trajectories(5)
    drops = {"on_failure": "drop", "max_restarts": 30}
    with (
        make(LocalSampler, KnowingLater(), BreaksLater, in_flight, **drops) as sampler,
        twin(Knowing(), Breaks, **drops) as other,
    ):
        batch, expected_batch = sampler.obtain_trajectories(12), other.obtain_trajectories(12)
        assert batch == expected_batch
        assert batch.stats.dropped
        assert [each.index for each in batch.stats.dropped] == [each.index for each in expected_batch.stats.dropped]


class Breakable(KnowingLater):
    """Cannot be pickled once it has acted; once it has raised, it always raises."""

    is_broken = False

    async def get_action(self, observation: Any) -> Any:  # type: ignore[override]
        self.last = (n for n in observation)
        self.is_broken = self.is_broken or bool(observation[1] == 2 and observation[2] % 1 > 0.95)
        if self.is_broken:
            raise ValueError("broken for good")
        return await super().get_action(observation)


class BreakableForAll:
    """Remembers nothing of a trajectory, so all share it; once it has raised, it always raises."""

    is_broken = False

    async def get_action(self, observation: Any) -> Any:
        self.is_broken = self.is_broken or bool(observation[1] == 2 and observation[2] % 1 > 0.95)
        if self.is_broken:
            raise ValueError("broken for good")
        return int(observation[1]) % 4, {}


@pytest.mark.parametrize("agent", [Breakable(), BreakableForAll()], ids=["remembers", "shared"])
def test_policies_that_raised_are_replaced(agent: Any) -> None:
    drops = {"on_failure": "drop", "max_restarts": 60}
    with make(MultiprocessingSampler, agent, ComingsLater, 3, n_workers=1, **drops) as sampler:
        batch = sampler.obtain_trajectories(40)
        assert 0 < len(batch.stats.dropped) < 30


class Proxy:
    """Passes on all that it is asked for."""

    def __init__(self, env: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)


class Wrapper(Proxy):
    """Has the form of PettingZoo's wrappers, and waits for nothing."""

    def observation_space(self, agent: str) -> Any:
        return self.env.observation_space(agent)

    def action_space(self, agent: str) -> Any:
        return self.env.action_space(agent)

    def reset(self, **arguments: Any) -> Any:
        return self.env.reset(**arguments)

    def step(self, actions: Any) -> Any:
        return self.env.step(actions)


class SeesLater(TurnsLater):
    async def observe(self, agent: str) -> Any:
        return super().observe(agent)


class ValuesLater(KnowingLater):
    async def get_value(self, observation: Any) -> float:
        return 0.0


class PartOfInfos(ComingsLater):
    async def step(self, actions: Any) -> Any:
        *parts, infos = await super().step(actions)
        return *parts, infos | {"red_0": asyncio.sleep(0)}


class NoAnswer(KnowingLater):
    async def get_action(self, observation: Any) -> Any:  # type: ignore[override]
        raise asyncio.CancelledError


@pytest.mark.parametrize(
    ("agent", "env", "match"),
    [
        (Knowing(), lambda: Wrapper(ComingsLater()), "the reset of its wrapper Wrapper is not"),
        (Knowing(), SeesLater, "observe is an async def, which is never awaited: wait in reset and step"),
        (
            ValuesLater(),
            ComingsLater,
            "get_value of policy 'shared' is an async def, which is not awaited in environments of several",
        ),
        (Knowing(), PartOfInfos, "'red_0' in the result of step is a coroutine: await it in step"),
        (NoAnswer(), ComingsLater, "get_action of policy 'shared' for agent 'red_0', at timestep 0, raised asyncio"),
    ],
)
def test_what_is_refused(agent: Any, env: Any, match: str) -> None:
    with make(LocalSampler, agent, env) as sampler, pytest.raises(RolloutError, match=match):
        sampler.obtain_trajectories(1)


def test_what_passes_on_all_that_it_is_asked_for_is_no_wrapper() -> None:
    with make(LocalSampler, Knowing(), lambda: Proxy(ComingsLater())) as sampler, twin(Knowing(), Comings) as expected:
        assert sampler.obtain_trajectories(4) == expected.obtain_trajectories(4)


class Differs(Later, Comings):
    """Every environment but the first has its agents in another order, or other spaces; counts what is open."""

    n_made = n_open = 0

    def __init__(self, spaces_differ: bool) -> None:
        super().__init__()
        Differs.n_made += 1
        Differs.n_open += 1
        if Differs.n_made > 1 and spaces_differ:
            self.spaces = dict.fromkeys(self.spaces, spaces.Box(-9.0, 100.0, (3,), np.float32))
        elif Differs.n_made > 1:
            self.possible_agents = self.possible_agents[::-1]

    async def close(self) -> None:  # type: ignore[override]
        await super().close()  # type: ignore[misc]
        Differs.n_open -= 1


class DiffersAndBreaks(Differs):
    """Raises in the first trajectory, so that another environment takes its place."""

    async def step(self, actions: Any) -> Any:
        if Differs.n_made == 1:
            raise ValueError("broken")
        return await super().step(actions)


@pytest.mark.parametrize(
    ("spaces_differ", "match"), [(False, "the same agents, in the same order"), (True, "same spaces")]
)
@pytest.mark.parametrize(("env", "in_flight"), [(Differs, 2), (DiffersAndBreaks, 1)], ids=["second", "replaced"])
def test_environments_that_differ_are_refused_and_closed(
    env: Any, in_flight: int, spaces_differ: bool, match: str
) -> None:
    Differs.n_made = Differs.n_open = 0
    options: Any = {"on_failure": "drop", "max_restarts": 9, "check": None}
    with (
        make(LocalSampler, Knowing(), partial(env, spaces_differ), in_flight, **options) as sampler,
        pytest.raises(RolloutError, match=f"making the environment .*{match}"),
    ):
        sampler.obtain_trajectories(4)
    assert Differs.n_made > 1
    assert Differs.n_open == 0


class Poisoned:
    """Remembers nothing of a trajectory; once it has raised, it always raises."""

    is_broken = False

    def get_action(self, observation: Any) -> Any:
        self.is_broken = self.is_broken or bool(observation[1] == 2 and observation[2] % 1 > 0.95)
        if self.is_broken:
            raise ValueError("broken for good")
        return int(observation[1]) % 4, {}


def test_a_policy_that_came_with_an_update_is_replaced_after_it_raised() -> None:
    drops = {"on_failure": "drop", "max_restarts": 60, "check": None}
    update, agents = {"blue": Poisoned()}, {"red": Knowing(), "blue": Knowing()}
    with make(LocalSampler, agents, ComingsLater, 1, **drops) as sampler, twin(agents, Comings, **drops) as expected:
        batches = [each.obtain_trajectories(30, agent_update=update) for each in (sampler, expected)]
        assert batches[0] == batches[1]
        assert batches[0].stats.dropped


def test_replay_evaluate_and_compare(tmp_path: Path) -> None:
    how: dict[str, Any] = {"n_trajectories": 6, "seed": 4, "n_workers": 1, "return_of": "red"}
    agents = AGENTS["later"]
    in_flight: Any = {"worker_args": {"in_flight": 3}}
    found = streamsampler.evaluate(agents[0], ComingsLater, **how, **in_flight)
    expected = streamsampler.evaluate(agents[1], Comings, **how)
    assert found.returns.tolist() == expected.returns.tolist()
    with make(LocalSampler, agents[0], ComingsLater) as sampler:
        batch = sampler.obtain_trajectories(4)
        path = tmp_path / "batch.npz"
        batch.save(path)
        assert sampler.replay(1, 2, recorded=batch).same
        assert sampler.replay(1, 2, recorded=batch, actions=True).same
    assert streamsampler.replay(path, 2, agent=agents[0], env=ComingsLater).same
