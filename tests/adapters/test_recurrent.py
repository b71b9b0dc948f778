"""TorchAgent of a module that remembers: what it is given, what is recorded of it, in every kind of worker."""

from __future__ import annotations

import copy
import functools
import os
import signal
from typing import Any, NamedTuple

import cloudpickle
import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from torch import nn

from streamsampler import LocalSampler, MultiprocessingSampler, TrajectoryBatch, VecWorker
from streamsampler.agents.torch import TorchAgent
from streamsampler.errors import DataError, UsageError
from streamsampler.filters import RunningNorm
from tests.scripted.games import Comings, Stay, Turns

pytestmark = pytest.mark.extras
SHORT = functools.partial(gymnasium.make, "CartPole-v1", max_episode_steps=11)
SPACE = gymnasium.spaces.Discrete(2)
LANES: Any = {"worker_class": VecWorker, "worker_args": {"n_envs": 4}}


def native(mode: str) -> Any:
    """Return what makes a vector environment, which steps all of its environments by itself."""
    return functools.partial(SyncVectorEnv, [SHORT] * 4, autoreset_mode=AutoresetMode[mode])


class Counting(nn.Module):
    """Remembers how many observations it saw, and their sum; its value is what it remembers."""

    def __init__(self, form: str = "tensor") -> None:
        super().__init__()
        self.form = form
        self.weight = nn.Parameter(torch.zeros(()))

    def initial_state(self, n: int) -> Any:
        seen, total = torch.zeros(n, 1), torch.zeros(n, 4)
        return {
            "tensor": torch.cat([seen, total], 1), "tuple": (seen, total), "dict": {"seen": seen, "rest": (total,)},
        }[self.form]  # fmt: skip

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        if self.form == "tensor":
            state = state + torch.cat([torch.ones(len(x), 1), x], 1)
            seen, total = state[:, :1], state[:, 1:]
        elif self.form == "tuple":
            seen, total = state = (state[0] + 1, state[1] + x)
        else:
            seen, total = state["seen"] + 1, state["rest"][0] + x
            state = {"seen": seen, "rest": (total,)}
        return {
            "logits": torch.cat([total[:, :1], total[:, 1:2]], 1),
            "value": seen + total.sum(1, keepdim=True),
        }, state


class Summing(nn.Module):
    """Remembers the sum of what it saw, which is its value."""

    def initial_state(self, n: int) -> Any:
        return torch.zeros(n, 3)

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        return {"logits": torch.zeros(len(x), 4), "value": (state + x).sum(1, keepdim=True)}, state + x


def sums_before(batch: Any) -> np.ndarray:
    """Return how many observations of its part there were before each timestep, and their sum: (T, 5)."""
    found = []
    for start, length in zip(batch.starts, batch.lengths, strict=True):
        seen = batch.observations[start : start + length].astype(np.float32)
        total = np.cumsum(np.concatenate([np.zeros((1, 4), np.float32), seen[:-1]]), axis=0, dtype=np.float32)
        found.append(np.concatenate([np.arange(length)[:, None], total], axis=1))
    return np.concatenate(found)


def leaves_of(states: Any) -> np.ndarray:
    if isinstance(states, dict):
        order = sorted(states, key=lambda key: (key == "rest", key))
        return np.concatenate([leaves_of(states[key]) for key in order], axis=1)
    return states


@pytest.mark.parametrize("form", ["tensor", "tuple", "dict"])
@pytest.mark.parametrize("kind", ["one", "lanes", "NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_the_states_are_those_before_the_timesteps_where_they_are_recorded(form, kind):
    agent = TorchAgent(Counting(form), SPACE, state_every=3)
    env = SHORT if kind in ("one", "lanes") else native(kind)
    with LocalSampler(agent, env, seed=1, **({} if kind == "one" else LANES)) as sampler:
        batch = sampler.obtain_trajectories(9)
    assert 0 < batch.truncated.sum() < 9
    places = np.concatenate([start + np.arange(0, n, 3) for start, n in zip(batch.starts, batch.lengths, strict=True)])
    assert batch.states_at.tolist() == places.tolist()
    expected = sums_before(batch)
    for part in batch.minibatches(4, seed=0, by="sequence", length=6, epochs=2):
        np.testing.assert_allclose(leaves_of(part.states), expected[part.rows[:, 0]], atol=1e-4)
    going_on = ~batch.terminated
    after = expected[batch.starts + batch.lengths - 1][:, 1:] + batch.observations[batch.starts + batch.lengths - 1]
    values = 1 + batch.lengths + (after + batch.last_observations).sum(axis=1)
    np.testing.assert_allclose(batch.last_values[going_on], values[going_on], rtol=1e-4)


def test_without_state_every_there_is_one_state_for_each_trajectory():
    with LocalSampler(TorchAgent(Counting(), SPACE), "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_trajectories(5)
    assert batch.states_at.tolist() == batch.starts.tolist()
    (part,) = batch.minibatches(9, seed=0, by="sequence")
    assert part.mask.sum() == len(batch.rewards)
    assert sorted(part.mask.sum(axis=1).tolist()) == sorted(batch.lengths.tolist())
    with pytest.raises(UsageError, match=r"length=4 cuts before timestep 4 of .*, where the agent recorded no state"):
        batch.minibatches(9, seed=0, by="sequence", length=4)


def test_batches_without_states():
    """One that has no timesteps, and one that is joined with trajectories of an agent that does not remember."""
    with LocalSampler(TorchAgent(Counting(), SPACE), "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_trajectories(3)
        other = sampler.obtain_trajectories(2, agent_update="random")
    assert batch[[]].states_at.tolist() == [] == list(batch[[]].minibatches(2, seed=0, by="sequence"))
    joined = TrajectoryBatch.concatenate([batch, other])
    for length in (None, 2):
        with pytest.raises(DataError, match="2 of 5 trajectories, the first at position 3, have no recorded"):
            joined.minibatches(2, seed=0, by="sequence", length=length)


def test_sequences_have_each_timestep_once_an_epoch_in_an_order_of_the_seed():
    with LocalSampler(TorchAgent(Counting(), SPACE, state_every=2), "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_trajectories(7)
    epochs = [list(batch.minibatches(3, seed=seed, by="sequence", length=4)) for seed in (0, 0, 1)]
    for parts in epochs:
        rows = np.concatenate([part.rows[part.mask] for part in parts])
        assert sorted(rows.tolist()) == list(range(len(batch.rewards)))
        assert all(part.rows.shape[1] == 4 for part in parts)
        assert all((np.diff(part.rows[part.mask]) != 0).all() for part in parts)
    first = [np.concatenate([part.rows[:, 0] for part in parts]).tolist() for parts in epochs]
    assert first[0] == first[1] != first[2]


@pytest.mark.parametrize("options", [{}, LANES, {"inference": "parent"}], ids=["one", "lanes", "parent"])
@pytest.mark.parametrize("filters", [{}, {"observation_filter": RunningNorm()}], ids=["plain", "filtered"])
def test_parts_of_episodes_begin_with_the_state_that_the_last_part_left(options, filters):
    """With any number of workers; state and value go on over the calls."""
    agent, found = TorchAgent(Counting(), SPACE, state_every=5), []
    for n_workers in (1, 2):
        with MultiprocessingSampler(agent, "CartPole-v1", seed=1, n_workers=n_workers, **options, **filters) as sampler:
            found.append([sampler.obtain_fragments(13, 6) for _ in range(4)])
    for batches in zip(*found, strict=True):
        assert batches[0] == batches[1]
    for before, after in zip(found[0], found[0][1:], strict=False):
        states = after.agent_infos["state"]
        assert set(after.starts.tolist()) <= set(after.states_at.tolist())
        last = {env: part for part, env in enumerate(before.fragments["env_numbers"].tolist())}
        for part in np.flatnonzero(after.continued).tolist():
            earlier = last[after.fragments["env_numbers"][part]]
            cut = before.values[before.starts[earlier] + before.lengths[earlier] - 1]
            # The value is all that is remembered, after the observation.
            np.testing.assert_allclose(states[after.starts[part]].sum(), cut, rtol=1e-4)
            seen = before.last_observations[earlier].sum() + cut + 1
            np.testing.assert_allclose(before.last_values[earlier], seen, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, LANES], ids=["one", "lanes"])
def test_a_worker_that_is_killed_changes_nothing(options):
    agent, found = TorchAgent(Counting("tuple"), SPACE, state_every=4), []
    for kill in (False, True):
        with MultiprocessingSampler(agent, "CartPole-v1", seed=1, n_workers=2, max_restarts=None, **options) as sampler:
            found.append([])
            for _ in range(3):
                found[-1].append(sampler.obtain_fragments(10, 8))
                if kill:
                    os.kill(sampler.worker_pids()[0], signal.SIGKILL)
    assert found[0] == found[1]


@pytest.mark.parametrize("game", [Comings, Turns])
def test_each_of_several_agents_has_a_state_of_its_own(game):
    """Whoever else acts, or joins; where agents act in turn, each has a copy of the agent."""
    agents: Any = {"red": TorchAgent(Summing(), gymnasium.spaces.Discrete(4), state_every=2), "blue": "random"}
    with LocalSampler(agents, game, seed=1, max_episode_length=6) as sampler:
        batch: Any = sampler.obtain_trajectories(6)
    with MultiprocessingSampler(agents, game, seed=1, n_workers=2, max_episode_length=6) as sampler:
        assert sampler.obtain_trajectories(6) == batch
    red, blue = batch["red"], batch["blue"]
    assert len(set(red.actions.tolist())) > 1
    with pytest.raises(DataError, match="recorded no state"):
        blue.states_at  # noqa: B018
    for one in red:
        before = np.concatenate([np.zeros((1, 3), np.float32), np.cumsum(one.observations, axis=0, dtype=np.float32)])
        assert one.states_at.tolist() == list(range(0, one.n_timesteps, 2))
        np.testing.assert_allclose(one.agent_infos["state"][one.states_at], before[:-1][one.states_at], rtol=1e-5)
        np.testing.assert_allclose(one.values, before[1:].sum(axis=1), rtol=1e-5)
        if not one.terminated[0]:
            np.testing.assert_allclose(one.last_values, [(before[-1] + one.last_observations[0]).sum()], rtol=1e-5)
    assert 0 < red.terminated.sum() < len(red)


@pytest.mark.core
def test_it_is_a_torch_agent_that_travels():
    agent = TorchAgent(Counting(), SPACE, state_every=2)
    assert repr(agent) == "TorchAgent(Counting, CategoricalHead)"
    for other in (copy.deepcopy(agent), cloudpickle.loads(cloudpickle.dumps(agent))):
        assert type(other) is type(agent)
        other.reset(seed=0)
        infos = [other.get_action(np.ones(4))[1] for _ in range(3)]
        assert ["state" in info for info in infos] == [True, False, True]
        assert infos[2]["state"].tolist() == [2, 2, 2, 2, 2]
        assert other.get_value(np.ones(4)) == other.get_value(np.ones(4)) == 4 + 16
        other.reset(seed=0)
        assert other.get_action(np.ones(4))[1]["state"].tolist() == [0] * 5


class Wrong(Counting):
    """Returns what it should not."""

    def __init__(self, initial=None, returned=None) -> None:
        super().__init__()
        self.initial, self.returned = initial, returned

    def initial_state(self, n: int) -> Any:
        return super().initial_state(n) if self.initial is None else self.initial(n)

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        return super().forward(x, state) if self.returned is None else self.returned(x, state)


LOGITS = torch.zeros(1, 2)


@pytest.mark.core
@pytest.mark.parametrize(
    ("module", "said"),
    [
        (Wrong(lambda n: torch.zeros(5)), r"initial_state\(1\) should be a tensor with 1 rows.*but is \(5,\)"),
        (Wrong(lambda n: None), r"initial_state\(1\) should be .* but is a NoneType"),
        (Wrong(lambda n: ()), r"initial_state\(1\) should be .* but is \(\)"),
        (Wrong(lambda n: (torch.zeros(n, 1), 3)), r"but is \(\(1, 1\) float32, a int\)"),
        (Wrong(returned=lambda x, s: LOGITS), r"should return \(outputs, state\), but returned \(1, 2\)"),
        (
            Wrong(returned=lambda x, s: (LOGITS, s, s)),
            r"should return .*, but returned \(\(1, 2\) float32, ",
        ),
        (
            Wrong(returned=lambda x, s: (LOGITS, s[:, :2])),
            r"the state \(1, 5\) float32, but returned \(1, 2\) float32",
        ),
        (
            Wrong(returned=lambda x, s: (LOGITS, (s,))),
            r"the state \(1, 5\) float32, but returned \(\(1, 5\) float32\)",
        ),
        (Wrong(returned=lambda x, s: (LOGITS, {"h": s})), r"but returned \{'h': \(1, 5\) float32\}"),
        (
            Wrong(returned=lambda x, s: (LOGITS, s.double())),
            r"but returned \(1, 5\) float64: shapes and dtypes must be the same",
        ),
        (Wrong(lambda n: {0: torch.zeros(n, 5)}), r"a dict by name of such tensors, but is \{0: \(1, 5\) float32\}"),
        (Wrong(lambda n: torch.zeros(n, 5, dtype=torch.bfloat16)), "a tensor of torch.bfloat16 cannot be recorded"),
        (
            Wrong(returned=lambda x, s: ({"logits": LOGITS, "state": LOGITS}, s)),
            "is recorded as 'state': give its own output 'state' another name",
        ),
    ],
)
def test_what_is_wrong_with_a_module_that_remembers_is_said(module, said):
    agent = TorchAgent(module, SPACE)
    agent.reset(seed=0)
    with pytest.raises(UsageError, match=said):
        agent.get_action(np.zeros(4))


class Derived(TorchAgent):
    """Is no agent that keeps states."""


class Pair(NamedTuple):
    seen: torch.Tensor
    last: torch.Tensor


class Sharing(Counting):
    """Returns its very input as part of its state, and changes in place what it is given, its own buffer at first."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.zeros = how, torch.zeros(8, 4)

    def initial_state(self, n: int) -> Any:
        return Pair(self.zeros[:n], torch.zeros(n, 4))

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        value = (state.seen + x - state.last).sum(1)
        state = Pair(state.seen + x, x.clone()) if self.how == "apart" else Pair(state.seen.add_(x), x)
        return {"logits": state.seen[:, :2].clone(), "value": value}, state


@pytest.mark.parametrize("options", [{}, LANES])
def test_a_state_may_share_memory_with_what_the_module_is_given(options):
    found = []
    for how in ("apart", "in place"):
        with LocalSampler(TorchAgent(Sharing(how), SPACE, state_every=1), SHORT, seed=1, **options) as sampler:
            found.append([sampler.obtain_trajectories(6), *(sampler.obtain_fragments(7, 6) for _ in range(3))])
    assert found[0] == found[1]
    assert set(found[0][0].agent_infos["state"]) == {"0", "1"}


class Bounded(Counting):
    """Refuses a state of more timesteps than trajectories have."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        assert state[:, 0].max() < self.most
        return super().forward(x, state)


class Seen(Summing):
    """The same, of observations of three numbers, of which the second one is the timestep."""

    def initial_state(self, n: int) -> Any:
        return torch.zeros(n, 1)

    def forward(self, x: torch.Tensor, state: Any) -> Any:
        assert state.max() < 3
        return torch.zeros(len(x), 4), state + 1


def test_what_is_remembered_where_nothing_goes_on_does_not_run_on():
    agent = TorchAgent(Bounded(12), SPACE)
    for call in ("obtain_trajectories", "obtain_fragments"):
        with LocalSampler(agent, SHORT, seed=1, **LANES) as sampler:
            for _ in range(4):
                getattr(sampler, call)(*((9,) if call == "obtain_trajectories" else (15, 6)))
    stays = {"red_0": Stay(0, 2), "red_1": Stay(4, 7), "blue_0": Stay(0, 8)}
    policies: Any = {"red": TorchAgent(Seen(), gymnasium.spaces.Discrete(4)), "blue": "random"}
    with LocalSampler(policies, functools.partial(Comings, stays), seed=1) as sampler:
        played: Any = sampler.obtain_trajectories(2)
        assert played["red"].lengths.max() == 3


def test_bad_arguments_are_errors():
    with pytest.raises(UsageError, match=r"Derived has no state.*derive it from .*RecurrentTorchAgent"):
        Derived(Counting(), SPACE)
    with pytest.raises(UsageError, match="state_every=3 is for a recurrent module"):
        TorchAgent(nn.Linear(4, 2), SPACE, state_every=3)
    with pytest.raises(UsageError, match="state_every"):
        TorchAgent(Counting(), SPACE, state_every=0)
    with LocalSampler(TorchAgent(nn.Linear(4, 2), SPACE), "CartPole-v1", seed=1) as sampler:
        batch = sampler.obtain_trajectories(2)
    for ask in (lambda: batch.states_at, lambda: batch.minibatches(2, seed=0, by="sequence", length=2)):
        with pytest.raises(DataError, match="the agent recorded no state"):
            ask()
    with pytest.raises(UsageError, match="length=2 needs by='sequence'"):
        batch.minibatches(2, seed=0, length=2)  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="length"):
        batch.minibatches(2, seed=0, by="sequence", length=0)
