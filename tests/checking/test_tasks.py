"""What the tasks of a check find, in this process: one broken rule each."""

from functools import partial

import cloudpickle
import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers

from streamsampler import LocalSampler, RolloutError
from streamsampler.checking.agent import InspectAgent
from streamsampler.checking.environment import InspectEnvironment
from streamsampler.checking.findings import Finding, worst
from streamsampler.checking.seeds import (
    RunGymnasiumChecker,
    RunTwice,
    Traces,
    finding_of_one_process,
    finding_of_two_processes,
)
from streamsampler.checking.speed import MeasureCosts
from streamsampler.checking.worker import TaskWorker
from tests.checking.envs import LENGTH, Agent, Ball, Batched, Nested, Rule

SEED = 3
UNHURRIED = 600.0  # seconds: what is to be run ends a task, and not the time, however busy the machine is
INSPECT = InspectEnvironment(seconds=UNHURRIED, timesteps=500, max_episode_length=None)
TWICE = RunTwice(seconds=UNHURRIED, timesteps=50, numbers=(0, 1, 2))


def run(task, env, agent="random", max_episode_length=None):
    """Return what a task returns, run in this process."""
    arguments = {"task": task}
    with LocalSampler(
        agent,
        env,
        seed=SEED,
        worker_class=TaskWorker,
        worker_args=arguments,
        check=None,
        max_episode_length=max_episode_length,
    ) as sampler:
        return cloudpickle.loads(sampler.obtain_trajectories(1).episode_infos["result"][0].tobytes())


def by_name(findings):
    assert len({each.name for each in findings}) == len(findings)
    return {each.name: each for each in findings}


ENVS = {
    "bounds": ("observations", "failure", "outside its space", "Widen the space"),
    "nan": ("observations", "failure", "holds nan", "Widen the space"),
    "shape": ("observations", "failure", "has the shape (2,)", "change the space"),
    "dtype": ("observations", "warning", "has the dtype float64, and its space has float32", "np.asarray"),
    "buffer": ("buffers", "warning", "was overwritten, in timestep 1", "must copy them"),
    "global draws": ("generators", "warning", "step draws from numpy.random", "self.np_random"),
    "reward": ("rewards", "failure", "the reward should be a number", "finite number"),
    "nan reward": ("rewards", "failure", "the reward is", "finite number"),
    "flags": ("runs", "failure", "terminated should be True or False", "refuse"),
    "step returns": ("runs", "failure", "step must return", "refuse"),
    "reset returns": ("runs", "failure", "reset must return", "refuse"),
    "info keys": ("infos", "warning", "'contact' is in", "the same keys in each timestep"),
    "info kinds": ("infos", "warning", "'contact' is int and then float", "of one type"),
    "info": ("infos", "failure", "an info is a NoneType", "dict with strings for keys"),
    "endless": ("ends", "failure", "did not end within 500 timesteps", "max_episode_length"),
    "raises": ("runs", "failure", "stepping the environment raised RuntimeError: the robot stumbled", "on_failure"),
    "raises in reset": ("runs", "failure", "resetting the environment raised RuntimeError", "on_failure"),
    "close": ("close", "failure", "closing the environment raised RuntimeError: the door is stuck", "once at any time"),
}
REFUSED = {"shape": "observations", "reward": "rewards", "info": "infos"}


@pytest.mark.parametrize("env", [Rule, Nested])
@pytest.mark.parametrize("breaks", ENVS)
def test_an_environment_that_breaks_a_rule(breaks, env):
    name, verdict, what, advice = ENVS[breaks]
    inspected = run(INSPECT, partial(env, breaks))
    findings = by_name(inspected.findings)
    assert findings[name].verdict == verdict
    assert what in findings[name].what
    assert advice in findings[name].advice
    assert {each.verdict for each in findings.values() if each.name != name} == {"pass"}
    assert inspected.refused == REFUSED.get(breaks, "")


@pytest.mark.parametrize("env", [Rule, Nested, Ball, partial(Rule, "info at ends"), "CartPole-v1"])
def test_an_environment_that_breaks_none(env):
    inspected = run(INSPECT, env)
    assert {each.verdict for each in inspected.findings} == {"pass"}
    assert len(inspected.lengths) == 20
    assert sum(inspected.lengths) == inspected.timesteps


def test_what_raises_shows_where():
    details = by_name(run(INSPECT, partial(Rule, "raises")).findings)["runs"].details
    assert "self.fail()" in details
    assert "streamsampler/checking" not in details


def test_a_limit_ends_what_does_not_end_by_itself():
    limited = wrappers.TimeLimit(Rule("endless"), 700)
    assert "truncated after 700 timesteps" in by_name(run(INSPECT, lambda: limited).findings)["ends"].what
    cut = run(InspectEnvironment(UNHURRIED, 500, max_episode_length=9), partial(Rule, "endless"))
    assert "cut after 9 timesteps" in by_name(cut.findings)["ends"].what
    assert set(cut.lengths) == {9}


def test_what_there_is_no_time_for_is_not_known():
    finding = by_name(run(InspectEnvironment(0.1, 500, None), partial(Rule, "slow")).findings)["ends"]
    assert finding.verdict == "warning"
    assert "whether it ends is not known" in finding.what


def test_known_wrappers(tmp_path):
    finding = by_name(run(INSPECT, lambda: wrappers.NormalizeObservation(Rule())).findings)["wrappers"]
    assert finding.verdict == "failure"
    assert "updates its mean and variance" in finding.what
    assert finding.advice.startswith("Instead, put the normalisation into the agent")


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
def test_a_vector_environment(mode):
    mode = gymnasium.vector.AutoresetMode[mode]

    def make(breaks=""):
        return gymnasium.vector.SyncVectorEnv([partial(Rule, breaks)] * 3, autoreset_mode=mode)

    inspected = run(INSPECT, make)
    assert {each.verdict for each in inspected.findings} == {"pass"}
    assert (inspected.n_slots, len(inspected.lengths)) == (3, 3)
    assert "'outside" not in str(inspected.findings)
    assert by_name(run(INSPECT, partial(make, "bounds")).findings)["observations"].verdict == "failure"
    assert by_name(run(INSPECT, partial(make, "raises")).findings)["runs"].verdict == "failure"
    assert finding_of_one_process(run(TWICE, make)).verdict == "pass"
    with pytest.raises(RolloutError, match="began differently when it was reset twice"):
        run(TWICE, partial(make, "carries"))
    found = by_name(run(InspectAgent(UNHURRIED, 50), make, Batched()))
    assert {each.verdict for each in found.values()} == {"pass"}


def test_a_trajectory_that_depends_on_others():
    finding = finding_of_one_process(run(TWICE, partial(Rule, "carries")))
    assert finding.verdict == "failure"
    assert "trajectory 0 came out differently: its first observation" in finding.what
    assert "let its reset set back what it keeps" in finding.advice
    assert finding_of_one_process(run(TWICE, Rule)) == Finding(
        "seed", "pass", "8 timesteps came out the same from the same seed, before and after another trajectory"
    )


@pytest.mark.parametrize("breaks", ["unseeded", "remembers"])
def test_an_agent_that_depends_on_other_trajectories(breaks):
    finding = finding_of_one_process(run(TWICE, Rule, Agent(breaks)))
    assert finding.verdict == "failure"
    assert "its action at timestep" in finding.what
    assert "The agent keeps something" in finding.advice


def test_processes_are_compared():
    here = run(TWICE, Rule).traces
    there = run(Traces(UNHURRIED, 50, (2, 1, 0)), Rule)
    assert finding_of_two_processes(here, there).what.startswith("24 timesteps")
    other = run(Traces(UNHURRIED, 50, (2, 1, 0)), partial(Rule, "carries"))
    finding = finding_of_two_processes(here, other)
    assert "trajectory 0 came out differently: its first observation" in finding.what
    short = run(Traces(UNHURRIED, 3, (2, 1, 0)), Rule)
    assert finding_of_two_processes(here, short).what.startswith("9 timesteps")
    assert finding_of_two_processes(here, run(Traces(0.0, 3, (2, 1, 0)), Rule)).verdict == "not checked"


AGENTS = {
    "outside": ("actions", "failure", "action is outside its space", "Clip it"),
    "raises": ("agent", "failure", "choosing an action raised RuntimeError: no idea", ""),
    "global draws": ("agent's draws", "warning", "get_action draws from numpy.random", "reset(seed=…) seeds"),
    "returns": ("agent", "failure", "get_action must return (action, agent_info)", ""),
}


@pytest.mark.parametrize("breaks", AGENTS)
def test_an_agent_that_breaks_a_rule(breaks):
    name, verdict, what, advice = AGENTS[breaks]
    found = by_name(run(InspectAgent(UNHURRIED, 50), Rule, Agent(breaks)))
    assert found[name].verdict == verdict
    assert what in found[name].what
    assert advice in found[name].advice
    assert {each.verdict for each in found.values() if each.name != name} <= {"pass"}


def wide(observation):
    return np.full(1, 2.0, np.float32)


def double(observation):
    return np.zeros(1)


def test_actions_in_a_box():
    found = by_name(run(InspectAgent(UNHURRIED, 50), Ball, wide))
    assert "outside its space" in found["actions"].what
    found = by_name(run(InspectAgent(UNHURRIED, 50), Ball, double))
    assert found["actions"].verdict == "warning"
    assert "has the dtype float64" in found["actions"].what


def test_rows():
    def rows(agent):
        return by_name(run(InspectAgent(UNHURRIED, 20), Rule, agent))["rows"]

    assert rows(Batched()).what.startswith("each row of batches of 8 and 32 is computed from that row alone, as")
    assert "row_independent = True" in rows(Batched(says=False)).advice
    mixing = rows(Batched("mixes"))
    assert mixing.verdict == "failure"
    assert "says row_independent = True, but row" in mixing.what
    assert rows(Batched("mixes", says=False)).what.startswith("rows of batches depend on one another")
    assert "no get_actions" in rows(Agent()).what


def test_gymnasium_own_checker():
    assert [each.verdict for each in run(RunGymnasiumChecker(), Rule)] == ["pass"]
    found = run(RunGymnasiumChecker(), partial(Rule, "shape"))
    assert [each.verdict for each in found] == ["warning"]
    assert "The first element returned by `env.reset()` is not within the observation space" in str(found)
    found = run(RunGymnasiumChecker(), partial(Rule, "raises in reset"))
    assert "its checker ended with RuntimeError: the robot fell over" in found[0].what


@pytest.mark.parametrize("breaks", ["", "endless"])
def test_costs(breaks):
    limit = 20 if breaks else None
    costs = run(MeasureCosts(0.1, 30.0), partial(Rule, breaks), Agent(), limit)
    length = 20 if breaks else LENGTH
    assert costs.timesteps % length == 0
    # Of trajectories that are cut, what is known of their lengths counts.
    assert costs.mean_length == (30.0 if breaks else LENGTH)
    assert costs.reset == pytest.approx(costs.milliseconds_per_reset / costs.mean_length)
    assert min(costs.agent, costs.step, costs.reset) > 0
    assert costs.recording >= 0
    assert sum(costs.shares.values()) == pytest.approx(1)


def test_the_worst():
    assert worst([]) == "pass"
    found = [Finding("a", "warning", ""), Finding("b", "not checked", ""), Finding("c", "failure", "")]
    assert worst(found) == "failure"
    assert worst(found[:2]) == "warning"
    assert worst(found[1:2]) == "not checked"
