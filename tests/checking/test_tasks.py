"""What a check finds, in this process, without its times: one broken rule each."""

import sys
from functools import partial
from time import monotonic

import gymnasium
import numpy as np
import pytest
from gymnasium import wrappers

from streamsampler import LocalSampler
from streamsampler.checking import check as checking
from streamsampler.checking import limits as check_limits
from streamsampler.checking import other_checkers
from streamsampler.checking.apart import call_apart
from streamsampler.checking.check import CheckRun, CheckSettings
from streamsampler.checking.findings import Finding
from streamsampler.checking.limits import CheckSetup, TimeIsUpError
from streamsampler.checking.other_checkers import run_gymnasium_checker, run_pettingzoo_tests
from streamsampler.checking.row_probe import probe_rows
from streamsampler.environments.updates import as_env_update
from tests.checking.envs import Agent, Ball, Batched, Nested, Rule
from tests.scripted.games import Chooser, Comings, Turns

UNHURRIED = 600.0  # seconds: what is to be run ends a task, and not the time, however busy the machine is
OF_PROCESSES = "n_workers", "start_method", "max_restarts", "step_timeout", "limits"


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    def sampler(*given, **options):
        return LocalSampler(*given, **{name: value for name, value in options.items() if name not in OF_PROCESSES})

    monkeypatch.setattr(check_limits, "MultiprocessingSampler", sampler)
    monkeypatch.setattr(CheckRun, "_share", lambda *_: UNHURRIED)


def run(env, agent=None, stages=1, **settings):
    """Return a check whose first stages were run."""
    given = CheckSettings(**{"ends_within": 500, "time_limit": UNHURRIED, "seed": 3, **settings})
    found = CheckRun(as_env_update(env), "env", None if agent is None else lambda _: agent, given)
    for stage in found._stages()[:stages]:
        stage()
    return found


def by_name(findings):
    assert len({each.name for each in findings}) == len(findings)
    return {each.name: each for each in findings}


def limits(max_episode_length=None):
    return CheckSetup(monotonic() + UNHURRIED, UNHURRIED, 3, max_episode_length, lambda _: None)


ENVS = {
    "bounds": ("observations", "failure", "outside its space", "Widen the space"),
    "nan": ("observations", "failure", "holds nan", "Widen the space"),
    "shape": ("observations", "failure", "has the shape (2,)", "change the space"),
    "reward": ("rewards", "failure", "the reward should be a number", "finite number"),
    "nan reward": ("rewards", "failure", "the reward is", "finite number"),
    "flags": ("runs", "failure", "terminated should be True or False", "refuse"),
    "step returns": ("runs", "failure", "step must return", "refuse"),
    "reset returns": ("runs", "failure", "reset must return", "refuse"),
    "info": ("infos", "failure", "an info must be a dict, got NoneType", "dict with strings for keys"),
    "endless": ("ends", "failure", "did not end within 500 timesteps", "max_episode_length"),
    "raises": ("runs", "failure", "stepping the environment raised RuntimeError: the robot stumbled", "on_failure"),
    "raises in reset": ("runs", "failure", "resetting the environment raised RuntimeError", "on_failure"),
    "close": ("close", "failure", "closing the environment raised RuntimeError: the door is stuck", "work at any time"),
}
REFUSED = {"shape": "observations", "reward": "rewards", "info": "infos"}


@pytest.mark.parametrize(
    ("env", "breaks"), [*((Rule, it) for it in ENVS), *((Nested, it) for it in ("bounds", "nan", "shape"))]
)
def test_an_environment_that_breaks_a_rule(env, breaks):
    name, verdict, what, advice = ENVS[breaks]
    checked = run(partial(env, breaks), stages=2)
    findings = by_name(checked.findings)
    assert findings[name].verdict == verdict
    assert what in findings[name].what
    assert advice in findings[name].advice
    assert {each.verdict for each in findings.values() if each.name != name} <= {"pass", "not checked"}
    assert "not checked" not in {findings["made"].verdict, findings["wrappers"].verdict}
    if breaks == "raises":
        assert "self.fail()" in findings["runs"].details
        assert "streamsampler/checking" not in findings["runs"].details
    if breaks in REFUSED:
        assert findings["runs"].what == f"see {name}"
        assert findings["seed"].what == f"samplers refuse the environment's values: see {name}"


def test_what_was_not_run_in_time_is_not_compared(monkeypatch):
    def late(*_):
        raise TimeIsUpError

    monkeypatch.setattr(checking, "run", late)
    findings = by_name(run(Rule, stages=3).findings)
    assert (findings["runs"].verdict, findings["runs"].what) == ("not checked", "the time limit was reached")
    assert findings["seed"].what == findings["processes"].what == "see runs"


@pytest.mark.parametrize("env", [Rule, Nested, Ball, "CartPole-v1"])
def test_an_environment_that_breaks_none(env):
    findings = by_name(run(env).findings)
    assert {each.verdict for each in findings.values()} == {"pass"}
    assert findings["runs"].what.startswith("20 trajectories ended")
    names = "made", "runs", "observations", "rewards", "ends", "wrappers", "close"
    assert tuple(findings) == names


def test_a_limit_ends_what_does_not_end_by_itself():
    limited = wrappers.TimeLimit(Rule("endless"), 700)
    assert "truncated after 700 timesteps" in by_name(run(lambda: limited).findings)["ends"].what
    cut = by_name(run(partial(Rule, "endless"), max_episode_length=9).findings)
    assert cut["ends"].what == "20 cut after 9 timesteps; lengths from 9 to 9"


def test_known_wrappers():
    findings = by_name(run(lambda: wrappers.NormalizeObservation(Rule()), stages=2).findings)
    assert findings["wrappers"].verdict == "failure"
    assert "updates its mean and variance" in findings["wrappers"].what
    assert findings["wrappers"].advice.startswith("Instead, pass observation_filter=RunningNorm()")
    assert findings["seed"].what == "see wrappers"


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP", "DISABLED"])
@pytest.mark.slow
def test_a_vector_environment(mode):
    mode = gymnasium.vector.AutoresetMode[mode]

    def make(breaks=""):
        return gymnasium.vector.SyncVectorEnv([partial(Rule, breaks)] * 3, autoreset_mode=mode)

    checked = run(make, Batched(), stages=6)
    findings = by_name(checked.findings)
    assert {each.verdict for each in checked.findings if each.name not in ("Gymnasium", "seed")} == {"pass"}
    assert {"agent", "actions", "rows", "seed", "processes"} <= findings.keys()
    assert findings["runs"].what == "3 trajectories ended, 24 timesteps with random actions"
    assert by_name(run(partial(make, "bounds")).findings)["observations"].verdict == "failure"
    assert by_name(run(partial(make, "raises")).findings)["runs"].verdict == "failure"
    carries = by_name(run(partial(make, "carries")).findings)["runs"]
    assert "began differently when it was reset twice" in carries.what


def test_a_trajectory_that_depends_on_others():
    finding = by_name(run(partial(Rule, "carries"), stages=2).findings)["seed"]
    assert finding.verdict == "failure"
    assert "trajectory 0 differs: its observation of timestep 0" in finding.what
    assert "let its reset clear this state" in finding.advice
    assert run(Rule, stages=2).findings[-1] == Finding(
        "seed", "pass", "24 timesteps are the same with the same seed, before and after others"
    )


@pytest.mark.parametrize("breaks", ["unseeded", "remembers"])
def test_an_agent_that_depends_on_other_trajectories(breaks):
    finding = by_name(run(Rule, Agent(breaks), stages=2).findings)["seed"]
    assert finding.verdict == "failure"
    assert "its action of timestep" in finding.what
    assert "The agent carries state" in finding.advice


class Counts(Rule):
    """Differs from others of its process: the second one that is made, from the first."""

    made = 0

    def __init__(self):
        super().__init__()
        type(self).made += 1

    def observe(self):
        return super().observe() / self.made


def test_processes_are_compared():
    checked = run(Rule, stages=2)
    checked._step_seconds = 1e9  # what is compared is as long though there is less time
    checked._other_processes()
    assert checked.findings[-1].what.startswith("24 timesteps")
    finding = by_name(run(Counts, stages=3).findings)["processes"]
    assert finding.verdict == "failure"
    assert "trajectory 0 differs: its observation of timestep 0 was [" in finding.what
    assert by_name(run(partial(Rule, "carries"), stages=3).findings)["processes"].what == "see seed"


AGENTS = {
    "outside": ("actions", "failure", "action is outside its space", "Clip it"),
    "wide": ("actions", "failure", "action is outside its space", "Clip it"),
    "raises": ("agent", "failure", "choosing an action raised RuntimeError: no idea", ""),
    "returns": ("agent", "failure", "get_action must return (action, agent_info)", ""),
}


def of_agent(env, agent):
    checked = run(env, agent)
    checked._agent_alone()
    return by_name(checked.findings)


def wide(observation):
    return np.full(1, 2.0, np.float32)


@pytest.mark.parametrize("breaks", AGENTS)
def test_an_agent_that_breaks_a_rule(breaks):
    name, verdict, what, advice = AGENTS[breaks]
    found = of_agent(Ball, wide) if breaks == "wide" else of_agent(Rule, Agent(breaks))
    assert found[name].verdict == verdict
    assert what in found[name].what
    assert advice in found[name].advice
    assert {each.verdict for each in found.values() if each.name != name} <= {"pass"}


def test_rows():
    def rows(agent):
        return probe_rows(agent, (Rule.observation_space, Rule.action_space), None)

    assert rows(Batched()).what.startswith("each row of batches of 8 and 32 depends on this row alone, as")
    assert "row_independent = True" in rows(Batched(says=False)).advice
    mixing = rows(Batched("mixes"))
    assert mixing.verdict == "failure"
    assert "has row_independent = True, but row" in mixing.what
    assert rows(Batched("mixes", says=False)).what.startswith("rows of batches depend on one another")
    assert "no get_actions" in rows(Agent()).what


def test_gymnasium_own_checker():
    def found(breaks):
        return call_apart(run_gymnasium_checker, as_env_update(partial(Rule, breaks)), limits())[1]

    assert [each.verdict for each in found("")] == ["pass"]
    assert [each.verdict for each in found("shape")] == ["warning"]
    assert "The first element returned by `env.reset()` is not within the observation space" in str(found("shape"))
    assert "its checker ended with RuntimeError: the robot fell over" in found("raises in reset")[0].what


class Vanishing(Comings):
    def step(self, actions):
        result = super().step(actions)
        self.agents = self.agents[1:]
        return result


class Outside(Comings):
    def seen(self, agent):
        return super().seen(agent) + 100


class Endless(Comings):
    def step(self, actions):
        super().step(actions)
        self.agents, no = list(actions), dict.fromkeys(actions, False)
        seen = {agent: self.seen(agent) for agent in self.agents}
        return seen, dict.fromkeys(actions, 0.0), no, no, {agent: {} for agent in actions}


class Paying(Comings):
    """Pays more by a number with each trajectory; the default is no number."""

    rounds = 0.0

    def __init__(self, more=float("nan")):
        super().__init__()
        self.more = more

    def reset(self, seed=None, options=None):
        self.rounds += self.more
        return super().reset(seed, options)

    def step(self, actions):
        observations, rewards, *rest = super().step(actions)
        return observations, {agent: reward + self.rounds for agent, reward in rewards.items()}, *rest


class Wrong(Chooser):
    def get_action(self, observation):
        return np.int64(99), {}


@pytest.mark.parametrize("env", [Comings, Turns])
@pytest.mark.slow
def test_several_agents_that_are_right_pass(env):
    checked = run(env, Chooser(), stages=3, ends_within=50)
    checked._agent_alone()
    found = by_name(checked.findings)
    names = (
        *("made", "runs", "observations", "rewards", "ends", "wrappers", "close", "seed", "processes"),
        *("agent", "actions"),
    )
    assert {name: each.verdict for name, each in found.items()} == dict.fromkeys(names, "pass")
    assert "20 trajectories ended" in found["runs"].what


@pytest.mark.parametrize(
    ("env", "name", "text"),
    [
        (Vanishing, "runs", "is gone, and was neither terminated nor truncated"),
        (Outside, "observations", "agent 'red_0': observation is outside"),
        (Paying, "rewards", "agent 'red_0': the reward is nan, at timestep 0 of a trajectory"),
        (Endless, "ends", "a trajectory did not end within 50 timesteps"),
        (partial(Paying, 1), "seed", "reward"),
    ],
)
@pytest.mark.slow
def test_what_is_wrong_with_several_agents_is_found(env, name, text):
    found = by_name(run(env, stages=2 if name == "seed" else 1, ends_within=50).findings)
    assert found[name].verdict == "failure"
    assert text in found[name].what


def test_several_agents_that_do_not_run_are_no_matter_of_gymnasiums_checker():
    checked = run(Vanishing)
    checked._others()
    assert checked.findings[-1] == Finding("PettingZoo", "not checked", "the environment does not run")


def test_a_base_class_is_advised_where_pettingzoos_test_misses_its_attributes():
    (found,) = other_checkers._findings_of("PettingZoo", "parallel_api_test", lambda: None.unwrapped)  # type: ignore[attr-defined]
    assert "AttributeError" in found.what
    assert "derive the environment from it: pettingzoo.ParallelEnv" in found.advice


def test_what_a_policy_does_wrong_is_found_and_pettingzoos_own_tests_need_it(monkeypatch):
    checked = run(Comings, {"shared": Wrong()}, ends_within=50)
    checked._agent_alone()
    found = by_name(checked.findings)["actions"]
    assert (found.verdict, "99" in found.what) == ("failure", True)
    monkeypatch.setitem(sys.modules, "pettingzoo.test", None)
    (found,) = call_apart(run_pettingzoo_tests, as_env_update(Comings), limits())[1]
    assert (found.verdict, "pip install pettingzoo" in found.advice) == ("not checked", True)
