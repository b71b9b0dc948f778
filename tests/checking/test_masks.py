"""`check` says when an environment has masks of actions that its agent does not take."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from streamsampler import LocalSampler, VecWorker, check
from streamsampler.checking.check import CheckRun
from streamsampler.checking.costs import Costs
from streamsampler.checking.env_facts import facts_of
from streamsampler.checking.probes import Probed, agent_seconds
from streamsampler.checking.runs import Ran, finding_of_masks
from streamsampler.checking.way import Problem
from streamsampler.checking.ways import ways_of
from streamsampler.environments.updates import apply_any_env_update, as_env_update
from tests.scripted.masks import PLACES, SPACES, Alone, InRows, Masked, make
from tests.several.test_masks import Alone as AloneOfSeveral
from tests.several.test_masks import Parallel, Together


class Lenient(Masked):
    """Allows everything after all."""

    def mask(self) -> Any:
        return np.ones(6, bool)


class ByMethod(Lenient):
    def __init__(self) -> None:
        super().__init__("method")

    def action_masks(self) -> Any:
        return self.mask()


class Plain:
    def get_action(self, observation: Any) -> Any:
        return 2, {}


class PlainOfSeveral:
    def get_action(self, observation: Any) -> Any:
        return 0, {}


def found(env: Any, agent: Any, **options: Any) -> Any:
    with LocalSampler(agent, env, seed=1, check=None, **options) as sampler:
        ran = Ran([sampler.obtain_trajectories(3)])
    return finding_of_masks(agent, facts_of(apply_any_env_update(as_env_update(env), None, several=True)), ran)


@pytest.mark.parametrize("place", PLACES)
def test_an_agent_that_takes_masks_is_found_to_do_so(place):
    finding = found(partial(make, place), Alone())
    assert (finding.verdict, "reach the agent" in finding.what) == ("pass", True)


@pytest.mark.slow
def test_an_agent_that_takes_no_masks_is_warned_of(monkeypatch):
    monkeypatch.setattr(CheckRun, "_fastest", lambda self: None)  # which takes long
    finding = check(Lenient, Plain(), time_limit=600.0, step_timeout=120.0)["masks"]
    assert finding.verdict == "warning"
    assert "(infos)" in finding.what
    assert "action_mask" in finding.advice


def test_masks_by_a_method_are_found():
    assert "(action_masks())" in found(ByMethod, Plain()).what
    vector = partial(SyncVectorEnv, [ByMethod, ByMethod])
    assert "(action_masks())" in found(vector, Plain(), worker_class=VecWorker, worker_args={"n_envs": 2}).what


def test_masks_of_observations_may_be_read_there():
    finding = found(partial(Lenient, "observation"), Plain())
    assert (finding.verdict, "in its observations" in finding.what) == ("pass", True)


def test_nothing_is_said_where_there_are_no_masks():
    assert found(partial(Lenient, "method"), Plain()) is None


def test_policies_that_take_none_are_named():
    class Game(Parallel):
        def check(self, agent: str, action: Any) -> None:
            pass

    agents = {"ape": AloneOfSeveral(), "bee": "random", "cat": Together()}
    assert found(Game, agents).verdict == "pass"
    finding = found(Game, {**agents, "bee": PlainOfSeveral()})
    assert (finding.verdict, "the agent bee takes no" in finding.what) == ("warning", True)


def test_an_agent_that_takes_masks_is_measured_with_one_and_not_with_managers():
    spaces = gymnasium.spaces.Box(0, 1000, (2,), np.float32), SPACES["discrete"]
    seconds, *_ = agent_seconds(Alone(), Probed(spaces, np.zeros(2, np.float32), Costs(0.0, 0.0, 0.0), None, 1.0))
    assert seconds > 0
    problem = partial(Problem, as_env_update(Masked), "env", n_workers=1, n_envs=2, max_episode_length=9, cuts=False)
    of_times: Any = {"length": 5.0, "reset_seconds": 0.0, "step_timeout": 9.0, "construction_timeout": 9.0}
    for agent, lacking in ((Alone(), True), (InRows(), True), ("random", False)):
        ways = ways_of(problem(agent, **of_times))
        assert any("no masks" in way.lacking for way in ways) == lacking
