"""Whole checks, in processes: what hangs, dies, differs from process to process, or is right."""

import threading
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium
import pytest

import streamsampler
from streamsampler import check
from streamsampler.checking import check as running
from streamsampler.checking.check import CheckInterruptedError, CheckRun
from streamsampler.core.errors import RemoteTraceback, UnknownEnvironmentError, UsageError, WorkerHungError
from streamsampler.protocol.messages import Phase
from tests.checking.envs import Agent, Ball, Batched, Rule
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


def assert_hung(report, seconds):
    assert f"stepping the environment did not end: no progress for {seconds} s" in report["runs"].what
    assert "in fail" in report["runs"].details
    assert_only(report, "runs", "failure")
    assert report["seed"].verdict == report["workers"].verdict == "not checked"
    assert report.recommendation is None


@pytest.mark.slow
def test_what_hangs_is_found_out():
    assert_hung(checked("hangs", **HANGS), 15)


def test_what_a_hang_is_a_finding_of(monkeypatch):
    """Without one, which takes time to be found out."""

    def hung(*_):
        error = WorkerHungError("it hung", stack="", worker_number=0, phase=Phase.STEP, trajectory=0)
        raise error from RemoteTraceback('Thread 0x1 (most recent call first):\n  File "envs.py", line 87 in fail')

    monkeypatch.setattr(running, "run", hung)
    assert_hung(checked(step_timeout=0.5), 0.5)


@pytest.mark.slow
def test_what_hangs_when_it_is_closed_is_found_out():
    report = checked("hangs in close", **HANGS)
    assert "closing the environment did not end" in report["close"].what
    assert_only(report, "close", "failure")


def test_what_ends_its_process_is_found_out():
    report = checked("dies")
    assert "the process ended with exit code 3 while stepping the environment" in report["runs"].what
    assert_only(report, "runs", "failure")


def test_what_cannot_be_made_is_found_out():
    report = checked("construction")
    assert "making the environment raised RuntimeError: no robot is here" in report["made"].what
    assert_only(report, "made", "failure")


@pytest.mark.slow
def test_what_differs_from_process_to_process_is_found_out():
    report = checked("hash")
    assert report["seed"].verdict == "pass"
    assert "in a new process, and after other trajectories" in report["processes"].what
    assert_only(report, "processes", "failure")


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
def test_only_the_broken_rule_is_found():
    assert_only(checked("close"), "close", "failure")


@pytest.mark.slow
def test_what_never_ends_is_measured_all_the_same():
    report = checked("endless", ends_within=300)
    assert "did not end within 300 timesteps" in report["ends"].what
    assert report.recommendation.rates
    assert_only(report, "ends", "failure")


@pytest.mark.slow
def test_a_native_vector_environment():
    report = check(lambda: gymnasium.make_vec("CartPole-v1", num_envs=4), time_limit=600.0, step_timeout=120.0)
    assert report.ok
    assert report["Gymnasium"].verdict == "not checked"
    (way,) = report.workers.ways
    assert way.rates
    assert way.call.endswith('worker_class=VecWorker, worker_args={"n_envs": 4})')


@pytest.mark.slow
def test_all_workers_are_measured():
    report = check("CartPole-v1", time_limit=600.0, step_timeout=120.0)
    assert [way.n_processes for way in report.workers.ways if way.rates] == [report.workers.n_workers] * 3
    assert "MultiprocessingSampler(agent, 'CartPole-v1', n_workers=" in report.recommendation.call


def test_the_time_limit(monkeypatch):
    """In the middle of the first trajectory, and for all that follows."""
    inspect = CheckRun._environment

    def inspect_and_use_up_the_time(run):
        inspect(run)
        run._limits = replace(run._limits, deadline=0.0)

    monkeypatch.setattr(CheckRun, "_share", lambda *_: 0.0)
    monkeypatch.setattr(CheckRun, "_environment", inspect_and_use_up_the_time)
    report = checked("endless")
    assert report["runs"].verdict == "pass"
    assert report["ends"].verdict == "warning"
    assert report["seed"].what == report["workers"].what == "the time limit was reached"
    assert report.ok


@pytest.mark.slow
def test_what_hangs_when_it_is_made_is_found_out():
    report = checked("hangs in construction", time_limit=0.5)
    assert report["made"].what == "the environment was not made within 0.50 s"
    assert_only(report, "made", "failure")


def test_progress_counts_the_checks():
    seen = []
    checked("raises in reset", progress=seen.append)
    assert (seen[0].unit, seen[0].trajectories, seen[-1].trajectories, seen[-1].target) == ("checks", 0, 6, 6)
    assert seen[-1].complete


def interrupt(snapshot):
    # Not at one check alone: a quick one may have ended before it was shown.
    if snapshot.trajectories >= 1 and not snapshot.complete:
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
        ({"deterministic": True}, UsageError, "for an agent that is given with them"),
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


def test_the_public_name():
    assert streamsampler.check is check
    assert Ball.action_space.shape == (1,)


@pytest.mark.extras
def test_a_torch_module_gets_the_action_space():
    torch = pytest.importorskip("torch")
    with pytest.raises(CheckInterruptedError) as caught:
        check("CartPole-v1", torch.nn.Linear(4, 2), progress=interrupt)
    assert caught.value.found.agent == "TorchAgent(Linear, CategoricalHead)"


@pytest.mark.extras
@pytest.mark.slow
def test_a_model_of_stable_baselines3(tmp_path):
    stable_baselines3 = pytest.importorskip("stable_baselines3")
    stable_baselines3.PPO("MlpPolicy", "Pendulum-v1", n_steps=64, batch_size=64).save(tmp_path / "model.zip")
    report = check("Pendulum-v1", tmp_path / "model.zip", time_limit=600.0, step_timeout=120.0)
    assert report.ok
    assert report["actions"].verdict == report["rows"].verdict == "pass"
    assert report.agent == "model.zip"
