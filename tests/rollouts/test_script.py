"""A script resets, steps and records one trajectory; drivers send it actions, cut it, close it and let it go on."""

from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, VecWorker
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.errors import ObservationError, RolloutError
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.script import Binding, Cut, End, own_error, phase_of, trajectory


class Counting(gymnasium.Env[Any, Any]):
    """Shows how many timesteps it had, in one array that it uses again."""

    observation_space, action_space = spaces.Box(-np.inf, np.inf, (1,)), spaces.Discrete(3)

    def __init__(self, ends_at: int = 5) -> None:
        self.shown, self.ends_at, self.closed = np.zeros(1, np.float32), ends_at, False

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.shown[:] = 0
        return self.shown, {"seed": seed}

    def step(self, action: Any) -> Any:
        self.shown += 1
        return self.shown, float(action), bool(self.shown[0] == self.ends_at), False, {}


class Seen:
    """Hooks that keep a list of what they see."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def start(self, observation: Any, info: Any) -> None:
        self.events.append(("start", float(observation[0]), info))

    def timestep(self, observation: Any, terminated: Any, truncated: Any, info: Any) -> None:
        self.events.append((float(observation[0]), terminated, truncated))

    def end(self, *, limited: bool) -> None:
        self.events.append(("end", limited))


def begun(env: gymnasium.Env[Any, Any], hooks: Any = None, **arguments: Any) -> tuple[Any, RolloutRecorder]:
    recorder = RolloutRecorder(env.observation_space, env.action_space)
    return trajectory(env.reset, Binding(env.step, recorder, hooks), 7, **arguments), recorder


def driven(script: Any, recorder: RolloutRecorder, n: int = 100) -> Any:
    """Send action 1 for so many timesteps; return the end, or None."""
    for _ in range(n):
        recorder.record_action(1)
        try:
            script.send(1)
        except StopIteration as stopped:
            return stopped.value
    return None


def test_a_script_runs_to_the_end_and_its_driver_ends_the_record():
    hooks = Seen()
    script, recorder = begun(Counting(), hooks)
    assert next(script).tolist() == [0]
    end = driven(script, recorder)
    assert (end.terminated, end.truncated, end.limited, end.ended) == (True, False, False, True)
    assert hooks.events[0] == ("start", 0.0, {"seed": 7})
    assert hooks.events[1:] == [(float(t), t == 5, False) for t in range(1, 6)] + [("end", False)]
    recorder.end(end.observation, end.terminated, end.truncated, limited=end.limited)
    rollouts: Any = recorder.finish()
    assert rollouts.observations[:, 0].tolist() == [0, 1, 2, 3, 4]
    assert rollouts.last_observations[:, 0].tolist() == [5]


def test_the_limit_counts_timesteps_of_all_parts():
    script, recorder = begun(Counting(9), limit=5)
    next(script)
    assert driven(script, recorder, 3) is None
    end = script.throw(Cut())
    assert not end.ended
    recorder.end(end.observation, False, False)
    other = RolloutRecorder(Counting.observation_space, Counting.action_space)
    env = Counting(9)
    env.shown[:] = 3
    assert script.send(Binding(env.step, other)).tolist() == [3]
    end = driven(script, other)
    assert (end.limited, end.terminated, end.observation.tolist()) == (True, False, [5])
    other.end(end.observation, False, False, limited=True)
    parts: Any = recorder.finish(), other.finish()
    assert [part.observations[:, 0].tolist() for part in parts] == [[0, 1, 2], [3, 4]]


def test_hooks_see_a_cut_neither_as_an_end_nor_as_a_start():
    hooks = Seen()
    env = Counting()
    script, recorder = begun(env, hooks)
    next(script)
    driven(script, recorder, 2)
    end = script.throw(Cut())
    recorder.end(end.observation, False, False)
    script.send(Binding(env.step, recorder, hooks))
    assert driven(script, recorder).terminated
    assert [event[0] for event in hooks.events] == ["start", 1.0, 2.0, 3.0, 4.0, 5.0, "end"]


def test_a_closed_script_loses_nothing_and_ends_nothing():
    hooks = Seen()
    script, _ = begun(Counting(), hooks)
    next(script)
    script.close()
    assert [event[0] for event in hooks.events] == ["start"]


class Raising(Counting):
    """Raises an exception at a place."""

    def __init__(self, where: str, error: BaseException) -> None:
        super().__init__()
        self.where, self.error = where, error

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if self.where == "reset":
            raise self.error
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if self.where == "step":
            raise self.error
        observation, *rest = super().step(action)
        return np.zeros(2, np.float32) if self.where == "observation" else observation, *rest


def raised_by(script: Any) -> tuple[BaseException | None, Phase]:
    """Return what a script raises within a timestep, and the phase, as drivers find them."""
    try:
        next(script)
        script.send(1)
    except BaseException as error:
        raised = own_error(error)
        return raised, phase_of(raised, None, Phase.WAITING)
    return None, Phase.WAITING


PHASES = {"reset": Phase.RESET, "step": Phase.STEP, "observation": Phase.RECORDING}


@pytest.mark.parametrize("where", PHASES)
@pytest.mark.parametrize("error", [ValueError("no"), StopIteration("no more"), RuntimeError("generator raised")])
def test_an_exception_comes_as_the_environment_raised_it_with_its_phase(where, error):
    script, _ = begun(Raising(where, error))
    raised, phase = raised_by(script)
    assert phase is PHASES[where]
    assert raised is error if where != "observation" else isinstance(raised, ObservationError)


def test_a_script_in_a_script_is_another_ones():
    """An environment, or an agent, may have a sampler of its own."""

    inner, _ = begun(Raising("reset", ValueError("no")))

    def asks() -> None:
        next(inner)

    phase = None
    try:
        asks()
    except ValueError as error:
        phase = phase_of(error, Phase.ACTION, Phase.WAITING)
    assert phase is Phase.ACTION


@pytest.mark.parametrize("worker", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}])
@pytest.mark.parametrize(
    ("agent", "where", "phase"),
    [(False, "reset", "resetting the environment"), (False, "step", "stepping the environment"), (True, "", "agent")],
)
def test_a_stop_iteration_of_an_environment_or_an_agent_is_an_error(worker, agent, where, phase):
    """It ends no script, and no trajectory."""

    def act(observation: Any) -> Any:
        if agent:
            raise StopIteration("of the agent")
        return 1

    made = LocalSampler(act, lambda: Raising(where, StopIteration("of the environment")), seed=1, **worker)
    with made as sampler, pytest.raises(RolloutError, match=phase) as caught:
        sampler.obtain_trajectories(2)
    assert isinstance(caught.value.__cause__, StopIteration)


def test_an_end_says_whether_the_trajectory_has_ended():
    cut = End(None, terminated=False, truncated=False, limited=False, info={}, n_timesteps=0)
    assert not cut.ended
    assert all(replace(cut, **{name: True}).ended for name in ("terminated", "truncated", "limited"))
