"""`streamsampler.checking.bench`: every way is measured or says why it cannot be, and one is recommended."""

import asyncio
import json
import math
import os
from dataclasses import replace
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import streamsampler.checking.bench as bench_module
from streamsampler.checking import probes
from streamsampler.checking.bench import BenchInterruptedError, bench
from streamsampler.checking.costs import Costs
from streamsampler.checking.probes import BenchEnvError, probe
from streamsampler.errors import UsageError
from streamsampler.workers.factory import usable_cores
from tests.patience import wait_for_exit_codes


class Nested(gymnasium.Env):
    """Nested spaces, trajectories of 5 timesteps; ends every process but one, if told so, and notes that in a file."""

    observation_space = spaces.Dict({"a": spaces.Box(-1, 1, (2,)), "b": spaces.Discrete(3)})
    action_space = spaces.Tuple((spaces.Discrete(2), spaces.Box(-1, 1, (2,))))

    def __init__(self, only=None, ends=None):
        self.only, self.ends = only, ends

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.timestep = 0
        return self.observe(), {}

    def observe(self):
        return {"a": np.zeros(2, np.float32), "b": 2}

    def step(self, action):
        assert action in self.action_space
        if self.only not in (None, os.getpid()):
            with open(self.ends, "a") as ends:
                ends.write("x")
            os._exit(3)
        self.timestep += 1
        return self.observe(), 1.0, self.timestep == 5, False, {}


def one_by_one(observation):
    return observation["b"] - 1, observation["a"]


@pytest.fixture
def unhurried(monkeypatch):
    """Let no way be given up because the machine is busy: all costs are known, and all that starts has time."""

    def known(*given):
        return replace(probe(*given), costs=Costs(construction=1e-3, reset=1e-4, step=1e-5))

    wait_for_exit_codes(monkeypatch)
    monkeypatch.setattr(probes, "PROBED_SECONDS", 60.0)
    monkeypatch.setattr(probes, "_FAST_CONSTRUCTION", math.inf)  # none is made twice because the first took long
    monkeypatch.setattr(bench_module, "probe", known)
    monkeypatch.setattr(probes, "agent_seconds", lambda *_: (1e-6, False, 0.0))
    monkeypatch.setattr(bench_module, "_PATIENCE", 120.0)
    return {"step_timeout": 120.0, "n_workers": 1}


@pytest.mark.slow
def test_all_ways_are_measured(unhurried):
    report = bench(Nested, one_by_one, seconds=0.5, n_envs=2, **unhurried)
    assert {way.name: bool(way.rates) for way in report.ways} == {
        "LocalSampler": True,
        "MultiprocessingSampler": True,
        "MultiprocessingSampler, VecWorker of 2": True,
        "MultiprocessingSampler, native vectors of 2": False,
        'MultiprocessingSampler, inference="parent" of 2': True,
        "SyncVectorEnv of 2": True,
        "SerialEnvManager of 2": True,
        "EnvManager of 2, synchronous": True,
        "EnvManager of 2, asynchronous": True,
    }
    assert all(way.timesteps_per_second > 0 for way in report.ways if way.rates)
    assert report.ways[3].obstacle == "the environment has no vector environment of its own"
    assert report.ways[5].call == "SyncVectorEnv([env] * 2).step(actions)"
    assert report.ways[7].call == "EnvManager(env, n_envs=2, n_workers=1).step(actions)"
    assert report.cut_after is None
    facts = json.loads(report.to_json())
    assert facts["recommendation"]["call"] == report.recommendation.call
    assert [way["rates"] for way in facts["ways"]] == [list(way.rates) for way in report.ways]


@pytest.mark.slow
def test_processes_that_end_are_obstacles_of_their_ways_alone(tmp_path, unhurried):
    kwargs = {"only": os.getpid(), "ends": tmp_path / "ends"}
    report = bench(Nested, env_kwargs=kwargs, seconds=0.1, n_envs=1, **unhurried)
    assert kwargs["ends"].read_text() == "xxxxx"  # each way's process ends once: none is started again
    obstacles = [way.obstacle for way in report.ways if way.n_processes and "native" not in way.name]
    assert len(obstacles) == 5
    assert all("ended with exit code 3" in obstacle for obstacle in obstacles)
    assert [way.name for way in report.ways if way.rates] == [
        "LocalSampler",
        "SyncVectorEnv of 1",
        "SerialEnvManager of 1",
    ]
    assert str(report).count("ended with exit code 3") == 5
    assert report.recommendation.n_processes == 0


def test_ways_are_given_up_for_whose_first_timesteps_there_is_no_time(monkeypatch):
    def slow(update):
        return replace(probe(update), costs=Costs(construction=40.0, reset=2.0, step=0.0))

    monkeypatch.setattr(bench_module, "probe", slow)
    report = bench(Nested, seconds=10, n_workers=1, n_envs=2)
    assert report.ways[0].obstacle.startswith("skipped: its first timesteps would take 42 s, and ")
    assert report.ways[2].obstacle.startswith("skipped: its first timesteps would take 84 s, and ")
    assert report.recommendation is None
    assert not any(way.rates for way in report.ways)


@pytest.mark.slow
def test_trajectories_are_cut_and_environments_made_once_which_need_not_close(monkeypatch, unhurried):
    class Endless(Nested):
        n_made = longest = 0

        def __init__(self):
            super().__init__()
            Endless.n_made += 1

        def step(self, action):
            observation, reward, _, truncated, info = super().step(action)
            Endless.longest = max(Endless.longest, self.timestep)
            return observation, reward, False, truncated, info

        def close(self):
            raise RuntimeError("it cannot be closed")

    known = bench_module.probe  # type: ignore[attr-defined]

    def probed(update):
        found = known(update)
        Endless.longest = 0  # the first one is stepped on, to see how long trajectories are
        return found

    monkeypatch.setattr(bench_module, "probe", probed)
    report = bench(Endless, seconds=0.1, n_envs=3, max_episode_length=2, **unhurried)
    assert all(way.rates for way in report.ways if "native" not in way.name)
    # The first one, LocalSampler's, and those of SyncVectorEnv and of SerialEnvManager.
    assert (Endless.n_made, Endless.longest) == (1 + 1 + 3 + 3, 2)


@pytest.mark.slow
def test_an_interrupted_run_has_what_was_measured(unhurried):
    def interrupt(snapshot):
        if snapshot.note == "starting SerialEnvManager of 1":
            raise KeyboardInterrupt

    interrupt.interval = 0.0  # type: ignore[attr-defined]
    with pytest.raises(BenchInterruptedError) as raised:
        bench("CartPole-v1", seconds=1, n_envs=1, progress=interrupt, **unhurried)
    report = raised.value.found
    rates = [bool(way.rates) for way in report.ways]
    assert rates == [True] * 6 + [False] * 3  # CartPole-v1 has a vector environment of its own
    assert report.ways[-1].obstacle == "not measured"
    assert report.ways[0].uncertain  # processes start in the first round


class Waits(Nested):
    async def reset(self, **arguments):  # type: ignore[override]
        await asyncio.sleep(1e-3)
        return super().reset(**arguments)

    async def step(self, action):  # type: ignore[override]
        await asyncio.sleep(1e-3)
        return super().step(action)


@pytest.mark.slow
@pytest.mark.parametrize("agent", [one_by_one, None])
def test_what_waits_is_measured_with_numbers_in_flight(unhurried, agent):
    report = bench(Waits, agent, seconds=0.2, n_envs=3, **{**unhurried, "n_workers": 2})
    assert {way.name: (way.n_processes, way.in_flight, bool(way.rates)) for way in report.ways} == {
        "1 worker, 1 in flight": (1, 1, True),
        "1 worker, 3 in flight": (1, 3, True),
        "2 workers, 3 in flight in each": (2, 3, True),
    }
    assert report.ways[1].call == 'MultiprocessingSampler(agent, env, n_workers=1, worker_args={"in_flight": 3})'
    assert report.recommendation in report.ways
    assert report.recommendation_in_parent is None
    assert "in flight: a timestep waits " in str(report)
    facts = json.loads(report.to_json())
    assert [way["in_flight"] for way in facts["ways"]] == [1, 3, 3]
    assert facts["why_in_flight"] == report.why_in_flight


@pytest.mark.parametrize(
    ("waiting", "n_workers", "names", "why", "hint"),
    [
        (2e-3, None, ["1 worker, 1 in flight", "1 worker, 50 in flight"], "one is busy with 50 in flight", False),
        (0.1, None, ["1 worker, 1 in flight", "1 worker, 10 in flight"], "a worker has time for more in flight", True),
        (0.1, 3, ["1 worker, 1 in flight", "3 workers, 200 in flight in each"], "as many as asked for", True),
    ],
)
def test_several_workers_are_measured_where_one_is_busy(monkeypatch, waiting, n_workers, names, why, hint):
    """Nothing runs: each way takes more time than there is."""
    costs = Costs(construction=40.0, reset=0.0, step=waiting, waiting=waiting)
    monkeypatch.setattr(bench_module, "probe", lambda update: replace(probe(update), costs=costs))
    report = bench(Waits, seconds=1, n_workers=n_workers)
    assert set(names) <= {way.name for way in report.ways}
    assert why in report.why_workers
    several = [way for way in report.ways if way.n_processes > 1]
    assert len(several) == (report.n_workers > 1)
    assert report.n_workers == (n_workers or (1 if hint else usable_cores()))
    assert report.ways[0].obstacle.startswith("skipped: its first timesteps would take 40 s")
    assert report.ways[-1].obstacle.startswith("skipped: its first timesteps would take ")
    assert "about 40 s" not in report.ways[-1].obstacle  # it has more environments
    assert report.recommendation is None


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        *(({name: n}, UsageError, name) for name, n in (
            ("seconds", 0), ("n_workers", 0), ("n_envs", 0), ("step_timeout", -1), ("max_episode_length", 0)
        )),
        ({"env_kwargs": {"onyl": 1}}, BenchEnvError, "cannot be made: TypeError: .*streamsampler check says more"),
    ],
)  # fmt: skip
def test_arguments_that_cannot_work(arguments: Any, error, words):
    with pytest.raises(error, match=words):
        bench(Nested, **arguments)
