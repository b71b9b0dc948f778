"""What environments and agents time is in the accounts."""

from typing import Any

import gymnasium
import numpy as np
import pytest

import streamsampler
from streamsampler import VecWorker
from tests.contracts.conftest import on, slow


class Timed(gymnasium.Wrapper):
    def __init__(self):
        with streamsampler.timed("made"):  # outside of all phases
            super().__init__(gymnasium.make("CartPole-v1"))

    def reset(self, *, seed=None, options=None):
        with streamsampler.timed("load"):
            streamsampler.timed.gauge("seed", 0 if seed is None else seed % 7)
            return self.env.reset(seed=seed, options=options)

    def step(self, action):
        with streamsampler.timed("physics"), streamsampler.timed("contacts"):
            observation, reward, terminated, truncated, _ = self.env.step(action)
        return observation, reward, terminated, truncated, {"angle": abs(float(observation[2]))}


class Agent:
    def get_action(self, observation):
        with streamsampler.timed("net"):
            return int(observation[2] > 0), {}

    def get_actions(self, observations):
        with streamsampler.timed("net"):
            return (observations[:, 2] > 0).astype(np.int64), {}


def counts(tree):
    return {"/".join(path): timer.count for path, timer in tree.walk() if timer.count}


@on("local", "waiting", "processes", *slow("queues fork"))
def test_each_timestep_is_timed_once_in_its_phase(make_sampler):
    sampler = make_sampler(Agent(), Timed, n_workers=2, seed=1)
    batches = [sampler.obtain_samples(300) for _ in range(2)]
    sampler.close()
    stats = sampler.stats
    found = counts(stats.timers())
    waited = {name: found.pop(name) for name in ("reset/waiting", "agent/waiting", "step/waiting") if name in found}
    assert set(waited) == ({"reset/waiting", "step/waiting"} if "in_flight" in stats.gauges() else set())
    assert set(found) == {"reset/load", "step/physics", "step/physics/contacts", "agent/net"}
    n_ran = sum(stats.worker_timesteps) - stats.checked_timesteps
    assert found["step/physics"] == found["step/physics/contacts"] == found["agent/net"] == n_ran
    assert found["reset/load"] >= sum(map(len, batches))
    for worker in range(2):
        own = stats.timers(worker)
        for phase in (own.children[name] for name in ("reset", "step", "agent")):
            assert sum(child.seconds for child in phase.children.values()) <= phase.seconds * 1.01
    assert sum(stats.timers(worker).seconds for worker in range(2)) == pytest.approx(stats.timers().seconds)


def test_side_by_side_and_in_numbers_for_a_tracker(make_local):
    side_by_side: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
    sampler = make_local(Agent(), Timed, seed=1, **side_by_side)
    batch = sampler.obtain_trajectories(9)
    found = counts(sampler.stats.timers())
    assert found["step/physics"] == batch.n_timesteps
    assert found["agent/net"] < batch.n_timesteps, "once for all environments"
    angle = pytest.approx(batch.env_infos["angle"].mean())
    assert sampler.stats.take_infos(batch, {"angle": "mean", "nothing": "sum"}) == {"angle": angle}
    flat = sampler.stats.flat()
    assert flat["infos/angle"] == flat["recent/infos/angle"] > 0
    assert flat["kept_timesteps"] == batch.n_timesteps
    assert flat["ms/step"] >= flat["ms/step/physics"] >= flat["ms/step/physics/contacts"] > 0
    sampler = make_local("random", "CartPole-v1", seed=1)
    sampler.obtain_trajectories(5)
    assert counts(sampler.stats.timers()) == {}


@on("local", "processes", *slow("queues fork"))
def test_what_the_script_times_is_in_its_samplers_accounts_and_in_no_workers(make_sampler):
    with streamsampler.timed("learn"):
        pass
    sampler = make_sampler(Agent(), Timed, n_workers=2, seed=1)
    for value in range(3):
        with streamsampler.timed("iteration"):
            batch = sampler.obtain_samples(50)
            with streamsampler.timed("learn"):
                streamsampler.timed.gauge("loss", value)
    stats = sampler.stats
    tree = stats.timers()
    assert counts(tree.children["script"]) == {"iteration": 3, "iteration/learn": 3}
    assert tree.seconds == pytest.approx(sum(child.seconds for child in tree.children.values()))
    assert [list(other.children) for other in (stats.timers(0), batch.stats.timers())] == [
        ["reset", "agent", "step", "sending", "idle", "checking"]
    ] * 2
    flat = stats.flat()
    assert flat["ms/script/iteration"] >= flat["ms/script/iteration/learn"] > 0
    assert {name: flat[f"gauges/{name}"] for name in ("loss", "loss/mean", "loss/minimum", "loss/maximum")} == {
        "loss": 2.0, "loss/mean": 1.0, "loss/minimum": 0.0, "loss/maximum": 2.0,
    }  # fmt: skip
    seeds = stats.gauges()["seed"]
    assert seeds.count == counts(tree)["reset/load"]
    assert 0 <= seeds.minimum <= seeds.mean <= seeds.maximum <= 6
    assert set(batch.stats.gauges()) == {"seed"}
    sampler.close()
