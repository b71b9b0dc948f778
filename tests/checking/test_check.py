"""Whole checks, in processes: what hangs, dies, differs from process to process, or is right."""

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import pytest

from streamsampler import check
from streamsampler.checking import check as running
from streamsampler.checking.check import CheckInterruptedError, CheckRun
from streamsampler.core.errors import RemoteTraceback, UnknownEnvironmentError, UsageError, WorkerHungError
from streamsampler.protocol.messages import Phase
from tests.checking.envs import Agent, Batched, Rule
from tests.checking.waiting_envs import Later, Waits
from tests.patience import wait_for_exit_codes, wait_for_stacks

# So long that nothing is taken for a hang that only waits for a core.
HANGS: dict[str, Any] = {"step_timeout": 15.0}


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """No check ends early, or knows less, because the machine is busy."""
    wait_for_exit_codes(monkeypatch)
    wait_for_stacks(monkeypatch)


def checked(breaks="", agent=None, **options):
    return check(partial(Rule, breaks), agent, **{"time_limit": 600.0, "step_timeout": 120.0, **options})


def assert_only(report, name, verdict):
    """Nothing else is found, but by Gymnasium's checker, which finds some of the same."""
    assert report[name].verdict == verdict
    others = {each.name for each in [*report.failures, *report.warnings]} - {"Gymnasium"}
    assert others == {name}
    assert report.ok == (verdict != "failure")


def test_what_a_hang_is_a_finding_of(monkeypatch):
    """Without one, which takes time to be found out."""

    def hung(*_):
        error = WorkerHungError("it hung", stack="", worker_number=0, phase=Phase.STEP, trajectory=0)
        raise error from RemoteTraceback('Thread 0x1 (most recent call first):\n  File "envs.py", line 87 in fail')

    monkeypatch.setattr(running, "run", hung)
    report = checked(step_timeout=0.5)
    assert "stepping the environment did not end: no progress for 0.5 s" in report["runs"].what
    assert "in fail" in report["runs"].details
    assert_only(report, "runs", "failure")
    assert report["seed"].verdict == report["workers"].verdict == "not checked"
    assert report.recommendation is None


@pytest.mark.parametrize(
    ("breaks", "name", "what", "options"),
    [
        ("dies", "runs", "the process ended with exit code 3 while stepping the environment", {}),
        ("construction", "made", "making the environment raised RuntimeError: no robot is here", {}),
        *(
            pytest.param(*row, marks=pytest.mark.slow)
            for row in (
                ("hangs in construction", "made", "the environment was not made within 0.50 s", {"time_limit": 0.5}),
                ("hangs", "runs", "stepping the environment did not end: no progress for 15 s", HANGS),
                ("hangs in close", "close", "closing the environment did not end", HANGS),
                ("close", "close", "closing the environment raised", {}),
                ("process", "processes", "in a new process, and after other trajectories", {}),
                ("endless", "ends", "did not end within 300 timesteps", {"ends_within": 300}),
            )
        ),
    ],
)
def test_only_the_broken_rule_is_found(breaks, name, what, options):
    report = checked(breaks, **options)
    assert what in report[name].what
    assert_only(report, name, "failure")
    if breaks == "endless":
        assert report.recommendation.rates, "it is measured all the same"
    if breaks == "hangs":
        assert "in fail" in report["runs"].details
        assert report["seed"].verdict == report["workers"].verdict == "not checked"


@pytest.mark.slow
@pytest.mark.parametrize("breaks", ["hangs", "dies"])
def test_an_agent_that_hangs_or_dies(breaks):
    report = checked(agent=Agent(breaks), **HANGS)
    assert "while choosing an action" in report["seed"].what or "choosing an action did not end" in report["seed"].what
    assert report["runs"].verdict == "pass"
    assert not report.ok


@pytest.mark.slow
def test_a_right_environment_with_a_right_agent():
    report = check(Rule, Batched(), time_limit=600.0, step_timeout=120.0)
    assert report.ok
    assert not report.warnings
    assert report.agent == "Batched"
    assert [way.name for way in report.workers.ways if way.rates][:1] == ["MultiprocessingSampler"]
    assert report.recommendation.n_processes >= 1
    for finding in report:
        assert finding.name in str(report)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "n_ways", "call"),
    [
        ("CartPole-v1", 3, "MultiprocessingSampler(agent, 'CartPole-v1', n_workers="),
        (
            partial(gymnasium.make_vec, "CartPole-v1", num_envs=4),
            1,
            'worker_class=VecWorker, worker_args={"n_envs": 4})',
        ),
    ],
)
def test_all_workers_that_there_are_for_an_environment_are_measured(env, n_ways, call):
    report = check(env, time_limit=600.0, step_timeout=120.0)
    assert report.ok
    assert [way.n_processes for way in report.workers.ways if way.rates] == [report.workers.n_workers] * n_ways
    assert call in report.recommendation.call


@pytest.mark.slow
def test_a_number_in_flight_is_recommended_for_an_environment_that_waits():
    agent: Any = Later()
    report = check(Waits, agent, time_limit=600.0, step_timeout=120.0)
    assert report.ok
    assert all(way.in_flight and way.rates for way in report.workers.ways)
    assert f'worker_args={{"in_flight": {report.recommendation.in_flight}}}' in report.recommendation.call
    assert report.workers.why_in_flight in " ".join(str(report).split())


def test_the_time_limit(monkeypatch):
    """In the middle of the first trajectory, and for all that follows."""
    inspect = CheckRun._environment

    def inspect_and_use_up_the_time(run):
        inspect(run)
        run._limits = replace(run._limits, deadline=0.0)

    monkeypatch.setattr(CheckRun, "_share", lambda *_: 0.0)
    monkeypatch.setattr(CheckRun, "_environment", inspect_and_use_up_the_time)
    # More timesteps than a fast machine gets to before the sampler first says how far it is.
    report = checked("endless", ends_within=10**9)
    assert report["runs"].verdict == "pass"
    assert report["ends"].verdict == "warning"
    assert report["seed"].what == report["workers"].what == "the time limit was reached"
    assert report.ok


def test_progress_counts_the_checks():
    seen = []
    checked("raises in reset", progress=seen.append)
    assert (seen[0].unit, seen[0].n_trajectories, seen[-1].n_trajectories, seen[-1].target) == ("checks", 0, 7, 7)
    assert seen[-1].complete


def interrupt(snapshot):
    # Not at one check alone: a quick one may have ended before it was shown.
    if snapshot.n_trajectories >= 1 and not snapshot.complete:
        raise KeyboardInterrupt


interrupt.interval = 0.0  # type: ignore[attr-defined] # each time, so that it comes as early as it may


def test_ctrl_c_keeps_what_was_found():
    with pytest.raises(CheckInterruptedError) as caught:
        checked(progress=interrupt)
    assert caught.value.found["runs"].verdict == "pass"
    with pytest.raises(KeyError):
        caught.value.found["workers"]


@pytest.mark.parametrize(
    ("arguments", "error", "match"),
    [
        ({"env": "CartPol-v1"}, UnknownEnvironmentError, "Did you mean 'CartPole-v1'"),
        ({"env": 3}, TypeError, "an environment is"),
        ({"time_limit": 0}, UsageError, "time_limit must be a number of seconds above 0"),
        ({"step_timeout": -1}, UsageError, "step_timeout must be"),
        ({"ends_within": 0}, UsageError, "ends_within must be at least 1"),
        ({"max_episode_length": 0.5}, UsageError, "max_episode_length must be an integer"),
        ({"seed": -1}, UsageError, "seed"),
        ({"deterministic": True}, UsageError, "need an agent"),
        ({"agent": 3}, UsageError, "an agent is"),
    ],
)
def test_wrong_arguments(arguments, error, match):
    with pytest.raises(error, match=match):
        check(**{"env": Rule, **arguments})


def test_an_environment_that_cannot_be_pickled():
    env: Any = Rule()
    env.lock = threading.Lock()
    report = check(env)
    assert "Pass a function that makes the environment" in report["made"].advice
    assert not report.ok
