"""`record_taken`: what an environment says that it did is recorded as the action."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, VecWorker, load, replay, sample_to_folder
from streamsampler.errors import DataError, RolloutError, UsageError
from tests.contracts.conftest import PARENT, RAY, Maker, on, slow
from tests.fragments.agents import Drawn, Fleeting, Recurrent
from tests.scripted.agents import Independent, always_zero
from tests.scripted.games import Chooser, Comings
from tests.tiers import mostly_slow

SEED = 11
TAKEN: dict[str, Any] = {"seed": SEED, "record_taken": "action_taken"}
THREE: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}


class Slippery(gymnasium.Env[Any, Any]):
    """Does the other thing now and then, and says so; the next observation has what it did."""

    observation_space = spaces.Box(-np.inf, np.inf, (4,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 25))
        return self.observe(-1), {}

    def observe(self, action: int) -> Any:
        return np.array([action, *self.np_random.random(3)], np.float32)

    def step(self, action: int) -> Any:
        self.left -= 1
        slips = self.np_random.random() < 0.4
        did = 1 - int(action) if slips else int(action)
        info = {"slips": bool(slips), **({"action_taken": did} if slips else {})}
        return self.observe(did), float(did), self.left == 0, False, info


def check(batch: Any, plain: Any) -> None:
    """Compare what is recorded with what observations say, and with what the agent chose."""
    assert batch.next_observations[:, 0].tolist() == batch.actions.tolist()
    slips = batch.env_infos["slips"]
    assert 0 < slips.sum() < len(slips)
    np.testing.assert_array_equal(batch.actions != plain.actions, slips)
    assert batch.actions.dtype == plain.actions.dtype
    assert set(batch.env_infos) == {"slips"}
    for name in ("observations", "rewards", "agent_infos", "lengths", "indices"):
        np.testing.assert_equal(getattr(batch, name), getattr(plain, name))


@on("local", "processes", *slow("queues fork", PARENT), RAY)
@pytest.mark.parametrize(("agent", "options"), [(Independent(always_zero), {}), (Fleeting(), THREE)])
def test_what_was_done_is_recorded(agent, options, make_sampler: Maker):
    options = THREE if make_sampler.engine == PARENT else options
    sampler = make_sampler(agent, Slippery, n_workers=2, **TAKEN, **options)
    with LocalSampler(agent, Slippery, seed=SEED, **options) as plain:
        check(sampler.obtain_trajectories(9), plain.obtain_trajectories(9))
        check(sampler.obtain_samples(100), plain.obtain_samples(100))
        one, other = next(iter(sampler.stream())), next(iter(plain.stream()))
        np.testing.assert_array_equal(one.actions != other.actions, other.env_infos["slips"])


@on("local", "processes", *slow("queues fork", PARENT), RAY)
@pytest.mark.parametrize(("agent", "options"), mostly_slow([(Recurrent(), {}), (Drawn(), THREE)]))
def test_episodes_of_fragments_are_restored_with_what_the_agent_chose(agent, options, make_sampler: Maker):
    options = THREE if make_sampler.engine == PARENT else options
    agent = Fleeting() if make_sampler.engine == PARENT else agent
    sampler = make_sampler(agent, Slippery, n_workers=2, **TAKEN, **options)
    with LocalSampler(agent, Slippery, seed=SEED, **options) as plain:
        n_continued = 0
        for _ in range(4):
            batch, without = sampler.obtain_fragments(12, 3), plain.obtain_fragments(12, 3)
            check(batch, without)
            n_continued += batch.continued.sum()
            if make_sampler.engine != "local":
                with suppress(ProcessLookupError):
                    os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        assert n_continued > 3


def test_it_can_be_replayed_and_goes_into_files(tmp_path):
    with LocalSampler(Independent(always_zero), Slippery, **TAKEN) as sampler:
        folder = sample_to_folder(sampler, tmp_path / "f", n_trajectories=6, shard_size=20, infos=False)
        batch = sampler.obtain_trajectories(6)
        batch.save(tmp_path / "batch.npz")
        assert load(tmp_path / "batch.npz") == batch
        index = int(batch.lengths.argmax())
        version = sampler.agent_version
        assert sampler.replay(version, index, recorded=batch).same
        with pytest.raises(UsageError, match="actions=True needs the actions chosen by the agent"):
            sampler.replay(version, index, recorded=batch, actions=True)
    actions = folder.to_batch().actions
    assert 0 < actions.sum() < len(actions), "the agent chooses 0 alone"


def test_folders_and_files_say_it(tmp_path):
    name = f"{__name__}:Slippery-v0"
    agent = Independent(always_zero)
    wanted: dict[str, Any] = {"n_trajectories": 6, "shard_size": 20}
    with LocalSampler(agent, name, **TAKEN) as sampler:
        sample_to_folder(sampler, tmp_path / "f", **wanted)
        batch = sampler.obtain_trajectories(6)
        batch.save(tmp_path / "batch.npz", provenance=sampler.provenance())
    with LocalSampler(agent, name, seed=SEED) as other, pytest.raises(UsageError, match="record_taken"):
        sample_to_folder(other, tmp_path / "f", resume=True, **wanted)
    sources: list[tuple[Any, Any]] = [
        *((tmp_path / file, {}) for file in ("f", "batch.npz")),
        (batch, {"record_taken": "action_taken"}),
    ]
    for given, options in sources:
        for index in range(6):
            assert replay(given, index, agent=agent, env=Slippery, **options).same
        with pytest.raises(UsageError, match="actions=True needs the actions chosen by the agent"):
            replay(given, 0, env=Slippery, actions=True, **options)
    assert not all(replay(batch, index, agent=agent, env=Slippery).same for index in range(6))


gymnasium.register("Slippery-v0", f"{__name__}:Slippery")


class Saying(gymnasium.Env[Any, Any]):
    """Says something of its action in its third step."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, says: Any, space: Any = None) -> None:
        self.says, self.action_space = says, space or spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.zeros(1, np.float32), 0.0, self.t == 4, False, {"action_taken": self.says} if self.t == 3 else {}


def of_zeros(env: Any, **options: Any) -> Any:
    return LocalSampler(Zeros(), env, **{**TAKEN, **options})


class Zeros:
    def get_action(self, observation: Any) -> Any:
        return np.zeros(2, np.float32), {}


@pytest.mark.parametrize("options", [{}, THREE])
def test_it_has_the_form_of_actions(options):
    with of_zeros(lambda: Saying([0.5, 1]), **options) as sampler:
        actions = sampler.obtain_trajectories(2).actions
    assert actions.dtype == np.float32
    assert actions.tolist() == [[0, 0], [0, 0], [0.5, 1], [0, 0]] * 2


@pytest.mark.parametrize("options", [{}, THREE])
@pytest.mark.parametrize(
    ("says", "words"),
    [
        ([0.5, 2.0], r"info\['action_taken'\] is outside the action space: ndarray array\(\[0.5, 2"),
        ([np.nan, 0.0], r"info\['action_taken'\] is outside the action space"),
        ([0.5], r"info\['action_taken'\] has the shape \(1,\), but its space has the shape \(2,\)"),
        ("left", r"info\['action_taken'\] should be numbers of float32"),
        ({"x": 0.5}, r"info\['action_taken'\] is a dict"),
    ],
)
def test_what_is_no_action_is_an_error(says, words, options):
    with of_zeros(lambda: Saying(says), **options) as sampler:
        with pytest.raises(RolloutError, match=f"recording the trajectory.*{words}") as caught:
            sampler.obtain_trajectories(2)
        assert isinstance(caught.value.original, DataError)
        if not isinstance(says, dict):
            assert caught.value.trajectory == 0
            assert "at timestep 2" in str(caught.value)
    if not options and not isinstance(says, dict):
        with (
            of_zeros(lambda: Saying(says), on_failure="drop") as sampler,
            pytest.raises(RolloutError, match="too many to drop"),
        ):
            sampler.obtain_trajectories(2)


@pytest.mark.parametrize("name", [5, "", ["a"], True])
def test_a_name_that_is_none_is_an_error(name):
    with pytest.raises(UsageError, match='record_taken must be the name of an info, such as "action_taken"'):
        of_zeros(lambda: Saying(0.0), record_taken=name)


def test_actions_of_several_arrays_or_agents_are_an_error():
    pair = spaces.Tuple([spaces.Discrete(2), spaces.Discrete(2)])
    given: list[Any] = [("random", lambda: Saying(0.0, pair)), (Chooser(), Comings)]
    for agent, env in given:
        with (
            LocalSampler(agent, env, **TAKEN) as sampler,
            pytest.raises(RolloutError, match="needs actions that are a single array or number"),
        ):
            sampler.obtain_trajectories(1)


def test_a_name_that_no_environment_uses_is_warned_of_once(caplog, tmp_path):
    with of_zeros(lambda: Saying([0.0, 0.0]), record_taken="taken_action") as sampler:
        for _ in range(3):
            assert "action_taken" in sampler.obtain_trajectories(2).env_infos
    warning = "record_taken='taken_action': the environment returned no info of this name"
    assert caplog.text.count(warning) == 1
    for n in (1, 2):
        with of_zeros(lambda: Saying([0.0, 0.0]), record_taken="taken_action") as sampler:
            if n == 1:
                sample_to_folder(sampler, tmp_path / "folder", n_trajectories=4, shard_size=5)
            else:
                with sampler.stream() as stream:
                    next(stream)
        assert caplog.text.count(warning) == 1 + n
    caplog.clear()
    with of_zeros(lambda: Saying([0.0, 0.0])) as sampler:
        sampler.obtain_trajectories(2)
    assert "record_taken" not in caplog.text
