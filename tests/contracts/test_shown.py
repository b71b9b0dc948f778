"""Hooks are shown copies, and an environment that writes to the same arrays again shows in none of them."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import Limits, VecWorker
from tests.contracts.conftest import PARENT, RAY, Maker, on, slow
from tests.tiers import mostly_slow

LENGTH = 7
THREE: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}


class Reusing(gymnasium.Env[Any, Any]):
    """Returns the same array and the same info each time, and clips the very action that it is given."""

    observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self.place = np.zeros(1, np.float32)
        self.info: dict[str, Any] = {"t": 0, "place": np.zeros(1)}
        return self.place, self.info

    def step(self, action: Any) -> Any:
        np.clip(action, -0.5, 0.5, out=action)
        self.t += 1
        self.place[:] = self.info["place"][:] = self.info["t"] = self.t
        return self.place, float(action[0]), self.t == LENGTH, False, self.info


class Eager:
    """Acts beyond what the environment does, and gives an info that it uses again."""

    row_independent = True

    def get_action(self, observation: Any) -> Any:
        return np.full(1, 0.75, np.float32), {"seen": observation.copy(), "value": 1.0}

    def get_actions(self, observations: Any) -> Any:
        return np.full((len(observations), 1), 0.75, np.float32), {
            "seen": observations.copy(), "value": np.ones(len(observations)),
        }  # fmt: skip

    def get_value(self, observation: Any) -> float:
        return 2.0

    def get_values(self, observations: Any) -> Any:
        return np.full(len(observations), 2.0)


class Alone(Eager):
    """May remember a trajectory, so that its value of the last observation is asked for as the trajectory ends."""

    get_actions: Any = None

    def reset(self, seed: int) -> None:
        pass


def texts(values: Any) -> str:
    return " ".join(f"{np.asarray(value).item():g}" for value in values)


class Keeping:
    """Keeps all that it is shown, and says at the end what became of it."""

    def on_trajectory_start(self, context: Any) -> None:
        context.memory.update(places=[context.observation], infos=[context.info], actions=[], agent_infos=[])

    def on_timestep(self, context: Any) -> None:
        memory = context.memory
        memory["places"].append(context.observation)
        memory["infos"].append(context.info)
        memory["actions"].append(context.action)
        memory["agent_infos"].append(context.agent_info)

    def on_trajectory_end(self, context: Any) -> None:
        memory, metrics = context.memory, context.metrics
        metrics["places"] = texts([*memory["places"], context.observation])
        metrics["actions"] = texts([*memory["actions"], context.action])
        metrics["ts"] = texts(info["t"] for info in memory["infos"])
        metrics["places_of_infos"] = texts(info["place"][0] for info in memory["infos"])
        metrics["agent_infos"] = texts(info["seen"][0] for info in memory["agent_infos"])
        metrics["at_reset"] = texts([context.reset_info["t"], context.reset_info["place"][0]])


class Changing:
    """Changes all that it is shown."""

    def change(self, context: Any) -> None:
        context.observation[:] = -9
        context.info["t"] = -9
        context.info["place"][:] = -9
        context.agent_info.clear()
        if context.action is not None:
            context.action[:] = -1

    on_trajectory_start = on_timestep = on_trajectory_end = change


def batches(make_sampler: Maker, agent: Any, **options: Any) -> list[Any]:
    sampler = make_sampler(agent, Reusing, n_workers=2, seed=3, **options)
    n_envs = 3 if make_sampler.engine == PARENT else 6
    found = [sampler.obtain_trajectories(5)]
    for _ in range(4):
        found.append(sampler.obtain_fragments(5, n_envs))
        if make_sampler.engine != "local":
            with suppress(ProcessLookupError):  # of a worker that had nothing to do since it was killed
                os.kill(sampler.worker_pids()[0], signal.SIGKILL)
    found.append(sampler.obtain_trajectories(5))
    return found


def options_of(make_sampler: Maker, options: dict[str, Any]) -> dict[str, Any]:
    has_restarts = make_sampler.engine != "local"
    return {**options, **({"max_restarts": None, "limits": Limits(max_lifetime_restarts=None)} if has_restarts else {})}


@on("local", "processes", *slow("queues fork", PARENT), RAY)
@pytest.mark.parametrize("options", mostly_slow([{}, THREE]))
def test_hooks_may_keep_what_they_are_shown(options, make_sampler: Maker):
    expected = {
        "places": "0 1 2 3 4 5 6 7 7", "ts": "0 1 2 3 4 5 6 7", "places_of_infos": "0 1 2 3 4 5 6 7",
        "actions": " ".join(["0.75"] * (LENGTH + 1)), "agent_infos": "0 1 2 3 4 5 6", "at_reset": "0 0",
    }  # fmt: skip
    found = batches(make_sampler, Eager(), hooks=Keeping(), **options_of(make_sampler, options))
    for batch in found:
        for name, words in expected.items():
            if batch.terminated.any():
                assert set(batch.episode_infos[name][batch.terminated]) == {words}, name
    assert sum(batch.terminated.sum() for batch in found) > 15


@on("local", "processes", *slow("queues fork", PARENT), RAY)
@pytest.mark.parametrize(("agent", "options"), mostly_slow([(Eager(), THREE), (Alone(), {}), (Eager(), {})]))
def test_what_hooks_change_of_it_shows_nowhere(agent, options, make_sampler: Maker):
    given = options_of(make_sampler, options)
    found, plain = (batches(make_sampler, agent, **hooks, **given) for hooks in ({"hooks": Changing()}, {}))
    assert found == plain
