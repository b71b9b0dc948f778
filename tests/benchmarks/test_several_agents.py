"""Games of several agents are sound, and all contenders count the timesteps of all agents together."""

import numpy as np
import pytest

from benchmarks.contenders import bare_several, ours
from benchmarks.problems import games
from benchmarks.problems.agents import OneByOne
from benchmarks.problems.workloads import WORKLOADS
from streamsampler import LocalSampler

GAMES = ["several_one", "several_1", "several_10"]
LENGTHS = {"several_one": 500, "several_1": 100, "several_10": 1000}


class Cautious:
    """Plays all of them without torch."""

    def get_action(self, observation):
        return int(observation[0] > 0), {}

    def get_actions(self, observations):
        return (observations[:, 0] > 0).astype(np.int64), {}


def agent_of(name):
    return WORKLOADS[name].make_agent() if name == "several_one" else Cautious()


@pytest.mark.parametrize("name", GAMES)
def test_games_are_the_same_for_the_same_seed_and_fit_their_spaces(name):
    env, again = WORKLOADS[name].make_env(), WORKLOADS[name].make_env()
    observations, infos = env.reset(seed=3)
    same, _ = again.reset(seed=3)
    assert env.agents == env.possible_agents == list(observations) == list(infos)
    actions = dict.fromkeys(env.agents, 1)
    assert all(env.action_space(agent).contains(1) for agent in env.agents)
    for _ in range(2):
        assert all(env.observation_space(agent).contains(seen) for agent, seen in observations.items())
        assert all(np.array_equal(seen, same[agent]) for agent, seen in observations.items())
        kept = {agent: seen.copy() for agent, seen in observations.items()}
        (after, *parts), (same, *_) = env.step(actions), again.step(actions)
        assert all(list(part) == env.possible_agents for part in parts)
        assert all(np.array_equal(seen, kept[agent]) for agent, seen in observations.items())
        observations = after


@pytest.mark.parametrize("name", GAMES)
def test_games_have_pettingzoos_interface(name):
    checks, base = pytest.importorskip("pettingzoo.test"), pytest.importorskip("pettingzoo").ParallelEnv
    env = WORKLOADS[name].make_env()
    env.__class__ = type("Checked", (type(env), base), {})  # the checks look for what the base class has besides
    checks.parallel_api_test(env, num_cycles=300)


@pytest.mark.parametrize("name", GAMES)
def test_the_bare_loop_and_ours_count_the_timesteps_of_all_agents(name):
    env, agent = WORKLOADS[name].make_env(), agent_of(name)
    length = LENGTHS[name]
    assert games.episode(env, agent, 1) == length
    for one_by_one in (False, True):
        loop = bare_several.bare_loop(env, agent, lambda: env.reset(seed=1)[0], one_by_one=one_by_one)
        assert loop(1e9, length + 1)[:2] == (2 * length, 2)
        asked = OneByOne(agent) if one_by_one else agent
        with LocalSampler(asked, WORKLOADS[name].make_env, seed=1) as sampler:
            collector = ours.Collector(WORKLOADS[name], sampler, {"batch": length}, {"count": "agent_steps"})
            found = collector.measure({"timesteps": 2 * length})
        assert (found["timesteps"], found["trajectories"], found["calls"]) == (2 * length, 2, 2)


def test_a_variant_is_another_environment_of_the_same_workload():
    one, ten = WORKLOADS["several_one"], WORKLOADS["several_10"]
    assert not hasattr(one.env_function({"variant": "single"})(), "possible_agents")
    assert len(ten.env_function({"variant": "one_agent"})().possible_agents) == 1
    assert len(ten.env_function({})().possible_agents) == 10
    with pytest.raises(KeyError):
        one.env_function({"variant": "unknown"})
