"""Errors of fragments name the episode: by the index and the version that its seed is of."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.core.seeding import SeedUse, derived_seed
from streamsampler.errors import RolloutError, SerializationError, WorkerDiedError
from streamsampler.protocol.messages import Phase

SEED = 20
TWO: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}
BEGAN_IN = 2  # the agent version


def is_culprit(seed: int) -> bool:
    return seed % 7 == 0


class Failing(gymnasium.Env[Any, Any]):
    """Does something wrong in the third timestep of some episodes."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, what: str) -> None:
        self.what = what

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t, self.is_culprit = 0, is_culprit(seed or 1)
        if self.is_culprit and self.what == "reset":
            raise ValueError("no reset")
        return np.zeros(1), {}

    def step(self, action: int) -> Any:
        self.t += 1
        observation, reward = np.zeros(1), 0.0
        if self.is_culprit and self.t == 3:
            match self.what:
                case "step":
                    raise ValueError("no step")
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case "reward":
                    reward = None  # type: ignore[assignment]
                case "observation" | "last observation":
                    observation = np.zeros(2)
                case "agent":
                    observation = np.ones(1)
        return observation, reward, self.t == (3 if self.what == "last observation" else 5), False, {}


class Agent:
    """Fails where it is told, or where it sees a one."""

    def __init__(self, what: str) -> None:
        self.what = what

    def reset(self, seed: int) -> None:
        if self.what == "agent's reset" and is_culprit(seed):
            raise ValueError("no reset")

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        if observation[0]:
            raise ValueError("no action")
        return 0, {}


class Rows(Agent):
    """Returns no action where it sees a one."""

    def get_actions(self, observations: Any) -> Any:
        return [None if sees_one else 0 for sees_one in observations[:, 0]], {}


def run_until_it_fails(sampler: Any) -> None:
    sampler.obtain_fragments(1, 1)
    for _ in range(100):
        sampler.obtain_fragments(2, 5)


def seed_of(sampler: Any, error: Any) -> int:
    """Return the seed of the episode that an error names, which began after others."""
    assert error.trajectory >= 5
    seed: int = sampler.seeds(BEGAN_IN, [error.trajectory])[0]
    return seed


CASES = [
    ("reset", Phase.RESET, Agent),
    ("step", Phase.STEP, Agent),
    ("reward", Phase.RECORDING, Agent),
    ("observation", Phase.RECORDING, Rows),
    ("last observation", Phase.RECORDING, Agent),
    ("agent", Phase.ACTION, Agent),
    ("agent", Phase.ACTION, Rows),
    ("agent's reset", Phase.AGENT_RESET, Agent),
]


@pytest.mark.parametrize("options", [{}, TWO], ids=["default", "vec"])
@pytest.mark.parametrize(("what", "phase", "agent"), CASES)
def test_an_exception_names_its_episode(what, phase, agent, options):
    options = {"seed": SEED, "n_workers": 2, "check": None, "env_kwargs": {"what": what}, **options}
    with LocalSampler(agent(what), Failing, **options) as sampler:
        with pytest.raises(RolloutError) as caught:
            run_until_it_fails(sampler)
        error = caught.value
        assert sampler.agent_version > BEGAN_IN
        seed = seed_of(sampler, error)
        assert is_culprit(derived_seed(seed, SeedUse.AGENT) if phase == Phase.AGENT_RESET else seed)
        assert error.phase == phase
        if phase == Phase.RECORDING:
            assert "DataError: Failing: " in str(error) or "ObservationError: Failing: " in str(error)
        assert f"in trajectory {error.trajectory} of agent version {BEGAN_IN}: " in str(error)
        if phase != Phase.AGENT_RESET:  # which would fail again
            assert not sampler.obtain_fragments(1, 5).continued.any()


def test_a_death_names_its_episode():
    options: dict[str, Any] = {"seed": SEED, "n_workers": 1, "check": None, "max_restarts": 0}
    with MultiprocessingSampler(Agent("kill"), Failing, env_kwargs={"what": "kill"}, **options) as sampler:
        with pytest.raises(WorkerDiedError) as caught:
            run_until_it_fails(sampler)
        error = caught.value
        assert is_culprit(seed_of(sampler, error))
        assert f"in trajectory {error.trajectory} of agent version {BEGAN_IN};" in str(error)
        assert not sampler.obtain_fragments(1, 5).continued.any()


made: list[Failing] = []


def two_and_no_more() -> Failing:
    if len(made) == 2:
        raise OSError("no more")
    made.append(Failing("nothing"))
    return made[-1]


@pytest.mark.parametrize("options", [{}, TWO], ids=["default", "vec"])
def test_what_fails_in_no_episode_names_none(options):
    made.clear()
    options = {"seed": SEED, "check": None, "env_kwargs": {"what": "nothing"}, **options}
    with LocalSampler(Agent("nothing"), Failing, **options) as sampler:
        sampler.obtain_fragments(2, 3)
        with pytest.raises(RolloutError, match="failed while making the environment of agent version 2") as caught:
            sampler.obtain_fragments(2, 3, env_update=two_and_no_more)
        assert caught.value.trajectory is None


class Locked(Agent):
    """Remembers a lock."""

    def get_state(self) -> Any:
        return threading.Lock()

    def set_state(self, state: Any) -> None:
        pass


def test_a_state_that_cannot_be_pickled_is_an_error_that_says_so() -> None:
    match = r"the result of the agent's get_state cannot be pickled: TypeError: .*lock"
    options: dict[str, Any] = {"seed": SEED, "n_workers": 1, "env_kwargs": {"what": "nothing"}}
    with MultiprocessingSampler(Locked(""), Failing, **options) as sampler:
        with pytest.raises(RolloutError, match=match) as caught:
            sampler.obtain_fragments(2, n_envs=2)
        assert isinstance(caught.value.original, SerializationError)
