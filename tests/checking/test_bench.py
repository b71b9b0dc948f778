"""`streamsampler.checking.bench`: every way is measured or says why it cannot be, and one is recommended."""

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
from streamsampler.checking import costs
from streamsampler.checking.bench import BenchInterruptedError, bench
from streamsampler.checking.benchmark_report import BenchReport, WayMeasured, recommended
from streamsampler.checking.costs import BenchEnvError, Costs, probe
from streamsampler.checking.tally import Tally
from streamsampler.checking.ways import Round, Stopwatch, TooSlowError
from streamsampler.core.progress import Snapshot
from streamsampler.errors import UsageError
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


def measured(**medians):
    return tuple(WayMeasured(name, f"{name}()", False, 0, (rate,) if rate else ()) for name, rate in medians.items())


def report_of(ways):
    facts: dict[str, Any] = {"environment": "E", "agent": "A", "n_cores": 2, "n_workers": 2, "seconds": 1.0}
    return BenchReport(ways=ways, why_workers="", cut_after=None, **facts)


@pytest.fixture
def unhurried(monkeypatch):
    """Let no way be given up because the machine is busy: all costs are known, and all that starts has time."""

    def known(update):
        return replace(probe(update), costs=Costs(construction=1e-3, reset=1e-4, step=1e-5))

    wait_for_exit_codes(monkeypatch)
    monkeypatch.setattr(costs, "_PROBED_SECONDS", 60.0)
    monkeypatch.setattr(costs, "_FAST_CONSTRUCTION", math.inf)  # none is made twice because the first took long
    monkeypatch.setattr(bench_module, "probe", known)
    monkeypatch.setattr(costs, "agent_seconds", lambda *_: (1e-6, False))
    monkeypatch.setattr(bench_module, "_PATIENCE", 120.0)
    return {"step_timeout": 120.0}


@pytest.mark.slow
def test_all_ways_are_measured(unhurried):
    report = bench(Nested, one_by_one, seconds=0.5, n_workers=1, n_envs=2, **unhurried)
    assert {way.name: bool(way.rates) for way in report.ways} == {
        "LocalSampler": True,
        "MultiprocessingSampler": True,
        "MultiprocessingSampler, VecWorker of 2": True,
        "MultiprocessingSampler, native vectors of 2": False,
        'MultiprocessingSampler, inference="parent" of 2': True,
        "SerialEnvManager of 2": True,
        "EnvManager of 2, synchronous": True,
        "EnvManager of 2, asynchronous": True,
    }
    assert all(way.timesteps_per_second > 0 for way in report.ways if way.rates)
    assert report.ways[3].obstacle == "the environment has no vector environment of its own"
    assert report.ways[6].call == "EnvManager(env, n_envs=2, n_workers=1).step(actions)"
    assert report.cut_after is None
    facts = json.loads(report.to_json())
    assert facts["recommendation"]["call"] == report.recommendation.call
    assert [way["rates"] for way in facts["ways"]] == [list(way.rates) for way in report.ways]


@pytest.mark.slow
def test_processes_that_end_are_obstacles_of_their_ways_alone(tmp_path, unhurried):
    kwargs = {"only": os.getpid(), "ends": tmp_path / "ends"}
    report = bench(Nested, env_kwargs=kwargs, seconds=0.1, n_workers=1, n_envs=1, **unhurried)
    assert kwargs["ends"].read_text() == "xxxxx"  # each way's process ends once: none is started again
    obstacles = [way.obstacle for way in report.ways if way.n_processes and "native" not in way.name]
    assert len(obstacles) == 5
    assert all("ended with exit code 3" in obstacle for obstacle in obstacles)
    assert [way.name for way in report.ways if way.rates] == ["LocalSampler", "SerialEnvManager of 1"]
    assert str(report).count("ended with exit code 3") == 5
    assert report.recommendation.n_processes == 0


class Made(Nested):
    """Counts how many are made in this process; cannot be closed."""

    n_made = 0

    def __init__(self):
        super().__init__()
        type(self).n_made += 1

    def close(self):
        raise RuntimeError("it cannot be closed")


@pytest.mark.slow
def test_environments_are_made_once_for_all_rounds_and_need_not_close(unhurried):
    Made.n_made = 0
    report = bench(Made, seconds=0.2, n_workers=1, n_envs=3, **unhurried)
    assert report.ways[0].rates
    assert report.ways[5].rates
    assert Made.n_made == 1 + 1 + 3  # the first one, LocalSampler's, and those of SerialEnvManager


@pytest.mark.slow
def test_trajectories_that_never_end_are_cut(unhurried):
    class Endless(Nested):
        def step(self, action):
            observation, reward, _, truncated, info = super().step(action)
            return observation, reward, False, truncated, info

    report = bench(Endless, seconds=0.1, n_workers=1, n_envs=1, **unhurried)
    assert all(way.rates for way in report.ways if "native" not in way.name)


def test_ways_are_given_up_for_whose_first_timesteps_there_is_no_time(monkeypatch):
    def slow(update):
        return replace(probe(update), costs=Costs(construction=40.0, reset=2.0, step=0.0))

    monkeypatch.setattr(bench_module, "probe", slow)
    report = bench(Nested, seconds=10, n_workers=1, n_envs=2)
    assert report.ways[0].obstacle.startswith("given up: its first timesteps take about 42 s, and ")
    assert report.ways[2].obstacle.startswith("given up: its first timesteps take about 84 s, and ")
    assert report.recommendation is None
    assert not any(way.rates for way in report.ways)


def test_a_way_without_timesteps_is_given_up():
    stopwatch = Stopwatch(Round(Tally(1, 100), 0.1, 0.1, 5.0, lambda: None))
    stopwatch(Snapshot(0, 0, 1, "timesteps", 4.9))
    with pytest.raises(TooSlowError, match="no timestep within 5 s"):
        stopwatch(Snapshot(0, 0, 1, "timesteps", 5.1))


@pytest.mark.slow
def test_trajectories_are_cut_in_all_ways(monkeypatch, unhurried):
    class Counted(Nested):
        longest = 0

        def step(self, action):
            stepped = super().step(action)
            Counted.longest = max(Counted.longest, self.timestep)
            return stepped

    known = bench_module.probe  # type: ignore[attr-defined]

    def probed(update):
        """Step the first environment to its end, to see how long trajectories are; no way does so."""
        found = known(update)
        assert Counted.longest == 5
        Counted.longest = 0
        return found

    monkeypatch.setattr(bench_module, "probe", probed)
    bench(Counted, seconds=0.1, n_workers=1, n_envs=1, max_episode_length=2, **unhurried)
    assert Counted.longest == 2


def test_what_takes_long_is_tried_with_fewer_environments_and_shorter_trajectories():
    assert Costs(construction=0.01, reset=1e-4, step=1e-4).n_envs(8, seconds=10) == 8
    assert Costs(construction=3.0, reset=0.0, step=0.0).n_envs(8, seconds=10) == 1
    assert Costs(construction=0.0, reset=0.1, step=0.0).n_envs(8, seconds=10) == 4
    assert Costs(construction=0.0, reset=0.0, step=2.0).n_envs(8, seconds=10) == 1
    assert Costs(construction=0.0, reset=0.0, step=0.0, agent=1.0).n_envs(8, seconds=10) == 8  # all in one call
    assert Costs(construction=0.0, reset=0.0, step=1e-5).longest(8, 2, seconds=10) > 1_000
    assert Costs(construction=0.0, reset=0.0, step=0.01).longest(1, 2, seconds=10) == 49
    assert Costs(construction=0.0, reset=0.0, step=0.0, agent=0.05, batched=False).longest(8, 2, seconds=10) == 2
    assert Costs(construction=0.0, reset=0.0, step=7.0).longest(1, 1, seconds=10) == 1


def interrupted(env, note, **options):
    """Return the report of a run that Ctrl-C ends while it does what is in `note`."""

    def interrupt(snapshot):
        if snapshot.note == note:
            raise KeyboardInterrupt

    interrupt.interval = 0.0  # type: ignore[attr-defined]
    with pytest.raises(BenchInterruptedError) as raised:
        bench(env, seconds=1, n_workers=1, n_envs=1, progress=interrupt, **options)
    return raised.value.found


@pytest.mark.slow
def test_an_interrupted_run_has_what_was_measured(unhurried):
    report = interrupted("CartPole-v1", "starting SerialEnvManager of 1", **unhurried)
    rates = [bool(way.rates) for way in report.ways]
    assert rates == [True] * 5 + [False] * 3  # CartPole-v1 has a vector environment of its own
    assert report.ways[-1].obstacle == "not measured"
    assert report.ways[0].uncertain  # processes start in the first round


def test_the_simplest_of_those_that_are_about_as_fast_is_recommended():
    assert recommended(measured(a=95.0, b=100.0, c=0.0)).name == "a"
    assert recommended(measured(a=80.0, b=95.0, c=100.0)).name == "b"
    assert recommended(measured(a=0.0, b=0.0)) is None


def test_the_table_says_why():
    assert "100 timesteps per second it is 2 times as fast as the next best, a." in str(
        report_of(measured(a=50.0, b=100.0))
    )
    assert "95 timesteps per second it is about as fast as b, and simpler." in str(report_of(measured(a=95.0, b=100.0)))
    assert "the only one that could be measured, at 7 " in str(report_of(measured(a=0.0, b=7.0)))
    assert "recommended" not in str(report_of(measured(a=0.0)))
    assert "With 100 timesteps per second it is about as fast as b, and simpler." in str(
        report_of(measured(a=100.0, b=98.0))
    )
    assert "it is 1.4 times as fast" in str(report_of(measured(a=10.0, b=14.0)))
    assert "it is 250 times as fast" in str(report_of(measured(a=10.0, b=2_500.0)))


def test_the_table_says_which_rates_are_uncertain():
    few = WayMeasured("few", "few()", False, 0, (0.49,), uncertain=True)
    (many,) = measured(many=1.25)
    table = str(report_of((few, many)))
    assert "about 0.49" in table
    assert "about 1.2" not in table
    assert "fewer than ten timesteps of each environment" in table
    assert "fewer than ten" not in str(report_of((many,)))


@pytest.mark.slow
def test_trajectories_are_cut_where_they_would_take_longer_than_a_round():
    wrapped = Nested.step

    class Slow(Nested):
        def step(self, action):
            for _ in range(3_000):
                observation, reward, _, truncated, info = wrapped(self, action)
            return observation, reward, False, truncated, info

    report = interrupted(Slow, "starting MultiprocessingSampler")
    assert report.cut_after < 1_000
    assert f"trajectories were cut after {report.cut_after:,} timestep" in str(report)  # one, on a busy machine


@pytest.mark.parametrize(
    "arguments", [{"seconds": 0}, {"n_workers": 0}, {"n_envs": 0}, {"step_timeout": -1}, {"max_episode_length": 0}]
)
def test_arguments_that_cannot_work(arguments):
    with pytest.raises(UsageError, match=next(iter(arguments))):
        bench("CartPole-v1", **arguments)


def test_an_environment_that_does_not_run():
    with pytest.raises(BenchEnvError, match=r"cannot be made: TypeError: .*streamsampler check says more"):
        bench(Nested, env_kwargs={"onyl": 1})
