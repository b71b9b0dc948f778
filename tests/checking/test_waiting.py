"""What a check finds of environments and agents that wait, in this process: one broken rule each."""

import asyncio
from functools import partial
from typing import Any

import pytest
from gymnasium.wrappers import TimeLimit, TransformReward

from streamsampler.checking.ordinary_env import MeasuredLoop, OrdinaryEnv, ordinary
from tests.checking.envs import Rule
from tests.checking.test_tasks import by_name, in_this_process, run  # noqa: F401 - a fixture for all tests
from tests.checking.waiting_envs import Idle, Later, Waits, WaitsAtClose
from tests.tiers import mostly_slow
from tests.workers.waiting.test_several import ComingsLater, KnowingLater, TurnsLater

NAMES = (
    *("made", "runs", "observations", "rewards", "ends", "wrappers", "close", "seed", "processes"),
    *("waits", "cancel", "in flight", "Gymnasium"),
)


def checked(env: Any, agent: Any = None, stages: int = 6) -> Any:
    return by_name(run(env, agent, stages=stages).findings)


def test_an_environment_that_waits_and_breaks_no_rule():
    """With the wrappers of `gymnasium.make`, and an agent that waits."""
    found = checked(lambda: TimeLimit(WaitsAtClose(), 6), Later())
    assert tuple(found) == (*NAMES, "agent", "actions")
    # A wait that is over at once is hardly one.
    assert {each.verdict for each in found.values() if each.name != "waits"} == {"pass"}
    assert "20 truncated" in found["ends"].what
    assert found["cancel"].what.startswith("resets and steps were cancelled ")
    assert found["in flight"].what == "18 timesteps are the same with trajectories in flight together"


BROKEN = {
    "parts": ("runs", "failure", "a part of the result of step is a coroutine: await it in step", ""),
    "twice": ("runs", "failure", "awaiting step returned another awaitable", ""),
    "raises": ("runs", "failure", "stepping the environment raised RuntimeError: the robot stumbled", "on_failure"),
    "close": ("close", "failure", "closing the environment raised RuntimeError: the door is stuck", "work at any time"),
    "carries": ("seed", "failure", "run again after others trajectory 0 differs", "self.np_random"),
    "global": ("in flight", "failure", "something drew from a global generator", "the environment from its np_random"),
    "shared": ("in flight", "failure", "in flight together with others trajectory 0 differs", "a class attribute"),
    "computes": (
        "waits",
        "warning",
        "without a wait, and all other trajectories in flight stand still",
        "asyncio.to_thread",
    ),
    "returns": ("cancel", "failure", "a reset was cancelled where it waits, and returned all the same", "raise it"),
    "goes on": ("cancel", "failure", "a reset was cancelled where it waits, and did not end within 1 s", "raise it"),
    "raises when cancelled": ("cancel", "warning", "and raised ConnectionError: the line is dead", "raise it again"),
    "left behind": ("cancel", "failure", "the next trajectory differs: 0.0 was 1.0", "Let reset renew"),
    "next": ("cancel", "failure", "trajectory raised ConnectionError: an answer is on its way", "Let reset renew"),
}


@pytest.mark.parametrize("breaks", BROKEN)
def test_an_environment_that_waits_and_breaks_a_rule(breaks):
    name, verdict, what, advice = BROKEN[breaks]
    found = checked(partial(WaitsAtClose if breaks == "close" else Waits, breaks), stages=4)
    assert found[name].verdict == verdict
    assert what in found[name].what
    assert advice in found[name].advice
    others = {each.verdict for each in found.values() if each.name not in (name, "waits")}
    assert others <= {"pass", "not checked"}
    assert ("not checked" in others) == (name in ("runs", "seed"))


def test_a_wrapper_that_would_take_a_coroutine_for_a_result():
    found = checked(lambda: TransformReward(Waits(), float))
    assert found["wrappers"].verdict == "failure"
    assert "the step of its wrapper TransformReward is not: it would take a coroutine" in found["wrappers"].what
    assert found["wrappers"].advice.startswith("Write it as async def step")
    for name in ("runs", "seed", "waits", "cancel", "in flight"):
        assert found[name].what == "samplers refuse the environment: see wrappers"


def test_an_environment_that_has_nothing_to_wait_for():
    found = checked(Idle)
    assert "other trajectories in flight hardly continue meanwhile" in found["waits"].what
    assert "write ordinary methods, without async" in found["waits"].advice
    assert found["cancel"].what == "no reset and no step waited, so nothing could be cancelled"
    assert found["in flight"].verdict == "pass"


def test_an_agent_that_waits_in_an_environment_that_does_not():
    found = checked(Rule, Later())
    assert (found["agent"].verdict, found["in flight"].verdict) == ("pass", "pass")
    assert not {"waits", "cancel", "rows"} & found.keys()
    forgets = checked(Rule, Later("remembers"))
    assert forgets["seed"].verdict == "failure"
    assert forgets["in flight"].what == "see seed"


def test_waits_and_turns_are_measured_also_within_a_running_loop():
    async def wait():
        await asyncio.sleep(0.01)
        return 3

    async def within():
        return loop.result_of(wait())

    loop = MeasuredLoop()
    assert (loop.result_of(wait()), loop.result_of(3), asyncio.run(within())) == (3, 3, 3)
    assert loop.longest_turn > 0
    assert loop.waited > 0
    loop.close()


def test_only_asynchronous_environments_become_ordinary_ones():
    plain = Rule()
    assert ordinary(plain) is plain
    env = ordinary(Waits())
    assert isinstance(env, OrdinaryEnv)
    observation, _ = env.reset(seed=1)
    assert env.observation_space.contains(observation)
    assert env.refusal == ""
    env.close()


@pytest.mark.parametrize("game", mostly_slow([ComingsLater, TurnsLater]))
def test_several_agents_that_wait(game):
    found = checked(game, KnowingLater())
    skipped = {"waits", "cancel", "PettingZoo", "workers", "rows"}
    assert {each.verdict for name, each in found.items() if name not in skipped} == {"pass"}
    assert found["waits"].what.endswith("with several agents steps are not timed, and not cancelled")
    assert found["PettingZoo"].what.endswith("its tests are for ordinary methods")
    assert "Gymnasium" not in found
