"""Fragments of several agents: parts are those of whole trajectories, and nothing is lost or doubled between them."""

from __future__ import annotations

import contextlib
import copy
import itertools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import streamsampler
from streamsampler import MultiAgentBatch, TrajectoryBatch, UsageError, load
from streamsampler.filters import RunningNorm
from tests.scripted.games import DEFAULT, Chooser, Comings, Stay, Turns
from tests.several.comparing import LocalSampler, sampled
from tests.several.test_equal_to_plain_loops import STAYS, AllAtOnce, Early, Waiting
from tests.several.test_lives import Crowd, Unannounced, crowd, kind_of
from tests.several.test_rows import AGENTS, Rowwise, Watching, rows
from tests.several.test_staleness import Dying
from tests.tiers import costly, mostly_slow

MultiprocessingSampler: Any = streamsampler.MultiprocessingSampler
Part = TrajectoryBatch[Any, Any]


def fragments(
    agent: Any, env: Any, n_timesteps: Sequence[int], n_envs: int = 2, make: Any = LocalSampler, **options: Any
) -> list[Any]:
    with make(agent, env, **{"seed": 3, "check": None, **options}) as sampler:
        return [sampler.obtain_fragments(n, n_envs) for n in n_timesteps]


def by_episode(batches: Sequence[MultiAgentBatch]) -> dict[tuple[int, str], list[Part]]:
    """Return the parts of each agent in each episode, by trajectory index and agent."""
    found: dict[tuple[int, str], list[Part]] = {}
    for batch in batches:
        for each in batch.policies.values():
            for part in each:
                index = int(batch.indices[int(each.episode_numbers[0])]) if len(each) == 1 else int(part.indices[0])
                found.setdefault((index, str(part.agent_ids[0])), []).append(part)
    return found


def infos_of(part: Part) -> list[Any]:
    return [(dict(row.env_info), dict(row.agent_info)) for row in part.time_steps()]


def concatenated(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Mapping):
        return {key: concatenated([value[key] for value in values]) for key in values[0]}
    return np.concatenate(values)


def assert_parts_of(parts: Sequence[Part], one: Part) -> bool:
    """Check that parts are the beginning of a trajectory; return whether they are all of it."""
    length, returned = 0, 0.0
    for part in parts:
        assert part.fragments["earlier_lengths"].tolist() == [length]
        assert part.fragments["earlier_returns"].tolist() == [returned]
        assert part.continued.tolist() == [length > 0]
        length += part.n_timesteps
        for reward in part.rewards.tolist():
            returned += reward
    for name in ("observations", "actions", "rewards", "env_timesteps"):
        np.testing.assert_equal(
            concatenated([getattr(part, name) for part in parts]),
            streamsampler.data.trees.take(getattr(one, name), slice(length)),
        )
    np.testing.assert_equal([info for part in parts for info in infos_of(part)], infos_of(one)[:length])
    assert all(part.cut.all() for part in parts[:-1])
    for part, following in itertools.pairwise(parts):
        np.testing.assert_equal(part.last_observations[0], following.observations[0])
    if parts[-1].cut.any():
        return False
    assert length == one.n_timesteps
    for name in ("last_observations", "terminated", "truncated", "last_values"):
        if name != "last_values" or "value" in one.agent_infos:
            np.testing.assert_equal(getattr(parts[-1], name), getattr(one, name))
    assert parts[-1].episode_lengths.tolist() == [length]
    return True


def assert_parts(batches: Sequence[MultiAgentBatch], whole: MultiAgentBatch) -> int:
    """Check that fragments are those of whole trajectories; return how many of these have ended in them."""
    expected = by_episode([whole])
    found = by_episode(batches)
    return sum(assert_parts_of(parts, expected[place][0]) for place, parts in found.items())


@pytest.mark.parametrize("which", mostly_slow(["both", *sorted(set(AGENTS) - {"both"})]))
@given(
    st.sampled_from([Comings, Turns]), STAYS, st.sampled_from([None, 3, 8]),
    st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 3),
)  # fmt: skip
@example(Comings, {}, None, [1] * 20, 1)
@example(Turns, {}, None, [1] * 30, 1)
@example(Turns, {}, 4, [3] * 9, 2)
@costly(3)
def test_parts_are_those_of_whole_trajectories(
    which: str, game: Any, stays: dict[str, Stay], limit: Any, n_timesteps: list[int], n_envs: int
) -> None:
    stays = {**stays, "red_0": Stay(0, 11)} if stays else DEFAULT
    how = {"max_episode_length": limit, "seed": 3, "check": None}
    batches = fragments(AGENTS[which], lambda: game(stays), n_timesteps, n_envs, **how)
    assert [batch.n_env_steps for batch in batches] == [n * n_envs for n in n_timesteps]
    assert fragments(AGENTS[which], lambda: game(stays), n_timesteps, n_envs, **how, **rows(2)) == batches
    indices = [int(batch.indices.max()) for batch in batches]
    assert_parts(batches, sampled(AGENTS[which], lambda: game(stays), n=1 + max(indices), **how))


class Waits(Waiting):
    def __init__(self) -> None:
        super().__init__({"red_0": Stay()})


UNANNOUNCED = [lambda: Unannounced(Comings()), lambda: Unannounced(Turns())]


@pytest.mark.parametrize("game", mostly_slow([Waits, *UNANNOUNCED, Early, AllAtOnce], 2))
@pytest.mark.parametrize("n", mostly_slow([2, 1, 5]))
def test_whoever_joins_waits_ends_early_or_comes_unannounced(game: Any, n: int) -> None:
    batches = fragments(AGENTS["both"], game, [n] * (40 // n), 1)
    assert fragments(AGENTS["both"], game, [n] * (40 // n), 1, **rows(2)) == batches
    whole = sampled(AGENTS["both"], game, n=1 + max(int(it.indices.max()) for it in batches), seed=3)
    assert assert_parts(batches, whole) > 0
    returns: dict[str, float] = {}
    for batch in batches:  # of the first episode, with rewards before the first action
        for agent, each in batch.episodes.returns.items():
            returns[agent] = returns.get(agent, 0.0) + float(np.nansum(each[batch.indices == 0]))
    assert returns == pytest.approx({agent: each[0] for agent, each in whole.episodes.returns.items()}, nan_ok=True)


def test_crowds() -> None:
    agents = {"a": "random", "b": Chooser()}
    batches = fragments(agents, Crowd, [3, 7, 1, 20], 2, policy_of=kind_of)
    assert assert_parts(batches, crowd(n=6)) > 15


@pytest.mark.parametrize("game", mostly_slow([Turns, Comings]))
@pytest.mark.parametrize(
    "options",
    mostly_slow([{"n_workers": 2}, {"n_workers": 2, **rows(2)}, {"n_workers": 3, "engine": "queues"}, rows(3)]),
)
def test_batches_do_not_depend_on_workers_and_engines(game: Any, options: Any) -> None:
    expected = fragments(AGENTS["both"], game, [3, 1, 4, 9], 5)
    assert fragments(AGENTS["both"], game, [3, 1, 4, 9], 5, MultiprocessingSampler, **options) == expected


class DyingTurns(Turns):
    def __init__(self, folder: Path, every: int = 5) -> None:
        super().__init__()
        self.dying = Dying(folder, every)

    def begin(self, seed: Any) -> None:
        super().begin(seed)
        self.dying.seed = seed

    def step(self, action: Any) -> None:
        self.dying.t = self.t
        with contextlib.suppress(AttributeError):
            self.dying.die()
        super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize("which", mostly_slow(["both", "across", "apart again", "random", "one by one"]))
@pytest.mark.parametrize(
    ("game", "kind"), mostly_slow([(DyingTurns, rows(2)), (Dying, {}), (Dying, rows(2)), (DyingTurns, {})])
)
def test_episodes_are_restored_after_losses(which: str, game: Any, kind: Any, tmp_path: Path, caplog: Any) -> None:
    own = {"apart again": {"red": Recalling(), "blue": Recalling()}, "one by one": Knowing()}
    agents = {**AGENTS, **own, "both": {"red": Knowing(1), "blue": Rowwise(2)}}[which]
    base = Comings if game is Dying else Turns
    updates: list[Any] = [None] * 5
    if which == "both":
        updates = [None, {"red": (2,)}, {"blue": Rowwise(1)}, None, {"red": Knowing(3), "blue": (3,)}]
    if which == "one by one":
        updates = [None, (2,), Knowing(3), None, (1,)]

    def batches(make: Any, env: Any, **options: Any) -> list[Any]:
        with make(agents, env, seed=3, check=None, **options) as sampler:
            return [sampler.obtain_fragments(n, 4, update) for n, update in zip((3, 2, 5, 4, 6), updates, strict=True)]

    expected = batches(LocalSampler, base)
    found = batches(MultiprocessingSampler, lambda: game(tmp_path, 2), n_workers=2, max_restarts=99, **kind)
    assert len(list(tmp_path.iterdir())) >= 2
    assert "cannot be restored" not in caplog.text
    assert found == expected


class Knowing(Chooser):
    """Can say what it remembers."""

    def get_state(self) -> Any:
        return copy.deepcopy((self.rng, self.n))

    def set_state(self, state: Any) -> None:
        self.rng, self.n = copy.deepcopy(state)


class Recalling:
    """Remembers the last actions of all agents of an environment, and can say what it remembers."""

    def reset(self, seed: int) -> None:
        self.last = seed % 4

    def get_action(self, observation: Any) -> Any:
        self.last = (self.last + int(observation[1])) % 4
        return self.last, {"last": self.last}

    def get_state(self) -> Any:
        return self.last

    def set_state(self, state: Any) -> None:
        self.last = state


@pytest.mark.slow
@pytest.mark.parametrize("game", mostly_slow([Turns, Comings]))
def test_updates_and_filters_in_the_middle_of_episodes(game: Any) -> None:
    """A policy that is replaced begins anew; one that gets parameters or a filter goes on."""
    how: dict[str, Any] = {"seed": 1, "check": None}
    how |= {"observation_filter": {"red": RunningNorm(), "blue": RunningNorm()}}
    agents = {"red": Rowwise(), "blue": Recalling()}
    updates = [None, {"red": (1,)}, {"blue": Recalling()}, {"red": Rowwise(), "blue": Recalling()}, None]
    found = []
    kinds: list[Any] = [(LocalSampler, {}), (MultiprocessingSampler, {"n_workers": 2}), (LocalSampler, rows(2))]
    for make, options in kinds:
        with make(agents, game, **how, **options) as sampler:
            found.append([sampler.obtain_fragments(3, 3, update) for update in updates])
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("game", [Comings, Turns])
@pytest.mark.parametrize("kind", [{}, rows(2)])
def test_hooks_see_an_episode_once(game: Any, kind: Any) -> None:
    batches = fragments(AGENTS["both"], game, [3, 4, 2, 9], 2, hooks=Watching(), **kind)
    shown = {}
    for batch in batches:
        for one in batch:
            for key, value in dict(one.episode_infos).items():
                if key == "shown" and not one.cut[0]:
                    shown[int(one.indices[0])] = value[0]
    assert shown
    with LocalSampler(AGENTS["both"], game, seed=3, hooks=Watching(), check=None) as sampler:
        whole = sampler.obtain_trajectories(8)
    for index, value in shown.items():
        assert value == whole.episode_infos["shown"][index]


@pytest.mark.parametrize("game", [Comings, Turns])
def test_advantages_of_a_policy(game: Any) -> None:
    """Generalised advantages of parts go on from the value of what comes next, as with one agent."""
    batches = fragments(Rowwise(), game, [4, 4, 4], 2)
    for batch in batches:
        policy = batch["shared"]
        for part in policy:
            found = part.advantages(gamma=0.9, lambda_=0.8)
            values = np.append(part.agent_infos["value"], 0.0 if part.terminated[0] else part.last_values[0])
            expected, after = [], 0.0
            for t in reversed(range(part.n_timesteps)):
                after = part.rewards[t] + 0.9 * values[t + 1] - values[t] + 0.9 * 0.8 * after
                expected.append(after)
            np.testing.assert_allclose(found, expected[::-1], rtol=1e-6)
        assert (policy.cut == ~(policy.terminated | policy.truncated)).all()
        assert set(policy.env_numbers.tolist()) <= {0, 1}
    assert any(batch["shared"].cut.any() for batch in batches)


def test_files_folders_and_statistics(tmp_path: Path) -> None:
    with LocalSampler(AGENTS["both"], Turns, seed=3, check=None) as sampler:
        batches = [sampler.obtain_fragments(n, 3) for n in (2, 5, 9)]
    for number, batch in enumerate(batches):
        batch.save(tmp_path / f"{number}.npz")
        assert load(tmp_path / f"{number}.npz") == batch
        assert TrajectoryBatch.concatenate([batch[:1], batch[1:]]) == batch
    both: Any = TrajectoryBatch.concatenate(batches[1:])
    assert both["red"].continued.sum() == sum(it["red"].continued.sum() for it in batches[1:])
    for batch in batches:
        assert (batch.stats.kept_timesteps, batch.stats.kept_trajectories) == (batch.n_env_steps, len(batch))
        assert batch.stats.episodes.count == (~batch.cut).sum()


@pytest.mark.parametrize("kind", [{}, rows(2)])
def test_whole_episodes_are_replayed_and_parts_are_refused(kind: Any) -> None:
    with LocalSampler(Knowing(), Turns, seed=3, check=None, **kind) as sampler:
        batch = sampler.obtain_fragments(40, 2)
        how = {"recorded": batch, "actions": bool(kind)}
        assert sampler.replay(1, 0, **how).difference is None
        with pytest.raises(UsageError, match="a part of an episode of several agents"):
            sampler.replay(1, int(batch.indices[batch.cut][0]), **how)


@pytest.mark.parametrize("game", mostly_slow([Turns, Comings]))
@pytest.mark.parametrize("kind", mostly_slow([rows(2), {}]))
@pytest.mark.parametrize("agents_too", mostly_slow([False, True]))
def test_a_run_that_is_stopped_goes_on_in_the_middle_of_episodes(game: Any, kind: Any, agents_too: bool) -> None:
    """Where agents are not in the state, those that policies have by then are given anew."""
    agents = {"red": Knowing(1), "blue": Rowwise(2)}
    updates: list[Any] = [None, {"blue": Rowwise(1)}, None, None]
    with LocalSampler(agents, game, seed=3, check=None, **kind) as sampler:
        expected = [sampler.obtain_fragments(3, 3, update) for update in updates]
    found: list[Any] = []
    state: Any = None
    for update in updates:
        given = agents if agents_too or len(found) < 2 else {**agents, "blue": Rowwise(1)}
        with LocalSampler(given, game, seed=3, check=None, **kind) as sampler:
            if state is not None:
                sampler.load_state_dict(state)
            found.append(sampler.obtain_fragments(3, 3, update))
            state = sampler.state_dict(agents=agents_too)
    assert found == expected


class Unfaithful(Dying):
    """Shows one agent something else in each process; rewards are the same."""

    def seen(self, agent: str) -> Any:
        seen = super().seen(agent)
        return seen + np.float32(os.getpid() % 7) * (agent == "blue_1")


@pytest.mark.slow
def test_an_episode_that_comes_out_otherwise_for_one_agent_is_not_restored(tmp_path: Path, caplog: Any) -> None:
    how = {"seed": 3, "check": None, "n_workers": 2, "max_restarts": 99}
    with MultiprocessingSampler(Rowwise(), lambda: Unfaithful(tmp_path, 2), **how) as sampler:
        for _ in range(4):
            sampler.obtain_fragments(2, 8)
    assert "the same actions did not lead to the same observations and rewards" in caplog.text


@pytest.mark.parametrize("n_workers", mostly_slow([1, 3]))
def test_a_fragment_in_which_no_agent_is_answered(n_workers: int) -> None:
    """Where agents act in turn, the first step answers none: a ticket may have nothing that policies played."""
    with LocalSampler(Knowing(), Turns, seed=4) as sampler:
        expected = [sampler.obtain_fragments(1, 3) for _ in range(3)]
    with MultiprocessingSampler(Knowing(), Turns, seed=4, n_workers=n_workers) as sampler:
        assert [sampler.obtain_fragments(1, 3) for _ in range(3)] == expected
    assert not expected[0].policies
    assert expected[-1].policies
