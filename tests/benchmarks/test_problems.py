"""What is measured: questions and goals name workloads and contenders that exist, and problems are sound."""

import importlib
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from benchmarks.contenders import bare_several, ours
from benchmarks.examples import EXAMPLES, curve_of
from benchmarks.harness.report import ORDER
from benchmarks.problems import games
from benchmarks.problems.agents import OneByOne
from benchmarks.problems.workloads import WORKLOADS, checksum
from benchmarks.questions import goals, on_policy, versions
from benchmarks.questions.everything import QUESTIONS
from streamsampler import LocalSampler

ROOT = Path(__file__).resolve().parents[2]


def assert_measured(workload, names, goals):
    assert workload in WORKLOADS
    assert len(set(names)) == len(names)
    assert all({goal.contender, goal.of} <= set(names) for goal in goals if goal.workload == workload)


def test_every_question_names_workloads_and_contenders_that_exist():
    assert {*QUESTIONS, "goals"} == set(ORDER)
    found = {name: importlib.import_module(f"benchmarks.questions.{name}") for name in QUESTIONS}
    asked = {name: module.QUESTION for name, module in found.items() if hasattr(module, "QUESTION")}
    assert len(asked) >= 14
    for name, question in asked.items():
        assert question.name == name
        for workload in question.workloads:
            names = [contender.name for contender in (*question.contenders, *question.extra.get(workload, ()))]
            assert question.limit in names
            assert_measured(workload, names, question.goals)
    for part in goals.PARTS.values():
        for measurement in part(ROOT):
            assert {goal.workload for goal in measurement.goals} == {measurement.workload}
            names = [contender.name for contender in measurement.contenders]
            assert_measured(measurement.workload, names, measurement.goals)
    assert {*versions.WORKLOADS, *versions.SLEEPING} <= set(WORKLOADS)
    sleeping = {name for name, workload in WORKLOADS.items() if workload.ideal}
    assert sleeping <= set(versions.SLEEPING), "they are judged by their speed"


@pytest.mark.parametrize("name", ["cheap_20", "still", "short", "pixels", "on_policy_varied", "stragglers"])
def test_environments_are_sound_and_agents_agree_with_themselves(name):
    env, agent = WORKLOADS[name].make_env(), WORKLOADS[name].make_agent()
    observation, _ = env.reset(seed=3)
    assert np.array_equal(observation, WORKLOADS[name].make_env().reset(seed=3)[0])
    seen = []
    for _ in range(3):
        assert env.observation_space.contains(observation)
        action, _ = agent.get_action(observation)
        assert env.action_space.contains(action)
        seen.append((observation, action))
        observation, reward, *ends, _ = env.step(action)
        assert (isinstance(float(reward), float), *ends) == (True, False, False)
    batched, _ = agent.get_actions(np.stack([observation for observation, _ in seen]))
    assert np.allclose(batched, [action for _, action in seen])


def test_the_checksum_reads_every_byte():
    array = np.random.default_rng(0).integers(0, 256, (3, 7, 5), np.uint8)
    before = checksum(array)
    for position in np.ndindex(array.shape):
        changed = array.copy()
        changed[position] ^= 0x55
        assert checksum(changed) != before


def test_the_scheduling_bound_of_equal_lengths_is_known(monkeypatch):
    monkeypatch.setattr(on_policy, "SHORTEST", 500)
    monkeypatch.setattr(on_policy, "LONGEST", 500)
    assert on_policy.bound(2000, 2, calls=3) == 1.0
    assert on_policy.bound(1500, 2, calls=3) == 0.75


def test_curves_of_examples_are_what_they_printed():
    printed = (
        "iteration 0: mean return 20.5 of 98 trajectories\n"
        "iteration 1: TrajectoryBatch(125 trajectories, 4,012 timesteps, return 32.1 ± 1.89 standard error)\n"
        "iteration 2: mean return -3, best 7\nevaluation: mean return 500.0 of 100 trajectories\n"
    )
    assert curve_of(printed) == [20.5, 32.1, -3.0]
    assert EXAMPLES["ppo_multiagent"].arguments(2)[-3:] == ["--iterations", "100", "--iterations=2"]


LENGTHS = {"several_one": 500, "several_1": 100, "several_10": 1000}


class Cautious:
    """Plays all of them without torch."""

    def get_action(self, observation):
        return int(observation[0] > 0), {}

    def get_actions(self, observations):
        return (observations[:, 0] > 0).astype(np.int64), {}


@pytest.mark.parametrize("name", LENGTHS)
def test_games_are_sound_and_contenders_count_the_timesteps_of_all_agents(name):
    workload, length = WORKLOADS[name], LENGTHS[name]
    env, again = workload.make_env(), workload.make_env()
    observations, same = env.reset(seed=3)[0], again.reset(seed=3)[0]
    assert env.agents == env.possible_agents == list(observations)
    actions = dict.fromkeys(env.agents, 1)
    for _ in range(2):
        assert all(env.observation_space(agent).contains(seen) for agent, seen in observations.items())
        assert all(np.array_equal(seen, same[agent]) for agent, seen in observations.items())
        (observations, *parts), (same, *_) = env.step(actions), again.step(actions)
        assert all(list(part) == env.possible_agents for part in parts)
    agent = workload.make_agent() if name == "several_one" else Cautious()
    assert games.episode(env, agent, 1) == length
    for one_by_one in (False, True):
        loop = bare_several.bare_loop(env, agent, lambda: env.reset(seed=1)[0], one_by_one=one_by_one)
        assert loop(1e9, length + 1)[:2] == (2 * length, 2)
        with LocalSampler(OneByOne(agent) if one_by_one else agent, workload.make_env, seed=1) as sampler:
            collector = ours.Collector(workload, sampler, {"batch": length}, {"count": "agent_steps"})
            found = collector.measure({"timesteps": 2 * length})
        assert (found["timesteps"], found["trajectories"], found["calls"]) == (2 * length, 2, 2)


@pytest.mark.extras
@pytest.mark.parametrize("name", LENGTHS)
def test_games_have_pettingzoos_interface(name):
    checks, base = pytest.importorskip("pettingzoo.test"), pytest.importorskip("pettingzoo").ParallelEnv
    env = WORKLOADS[name].make_env()
    env.__class__ = type("Checked", (type(env), base), {})  # the checks look for what the base class has besides
    checks.parallel_api_test(env, num_cycles=300)


@pytest.mark.extras
@pytest.mark.parametrize("source", ["fragments", "trajectories", "in_numpy", "vector"])
def test_segments_of_ppos_sources_are_what_the_environment_said(source):
    """Replayed from its observations and actions; log-probabilities and values are the policy's."""
    torch = pytest.importorskip("torch")
    from benchmarks.ppo import collectors, tasks
    from streamsampler.examples.ppo import ActorCritic

    env: Any = gymnasium.make("CartPole-v1").unwrapped
    task = tasks.TASKS["CartPole-v1"]
    policy = ActorCritic(env.observation_space, env.action_space)
    makers = {
        "fragments": lambda: collectors.fragments(task, policy, 1, 1),
        "trajectories": lambda: collectors.trajectories(task, policy, 1, 1),
        "in_numpy": lambda: collectors.trajectories(task, policy, 1, 1, in_numpy=True),
        "vector": lambda: collectors.vector_env(task, policy, 1, "sync"),
    }
    with makers[source]() as obtain:
        first, second = (obtain(230, 8, policy) for _ in range(2))
    go_on = source in ("fragments", "vector")
    env.reset(seed=0)
    for batch in (first, second):
        assert len(np.unique(batch.env_numbers)) == (8 if go_on else 1)
        assert batch.n_timesteps == 1840 if go_on else batch.n_timesteps >= 1840
        observations, last = torch.as_tensor(batch.observations), torch.as_tensor(batch.last_observations)
        with torch.no_grad():
            log_probs = policy.log_prob(observations, torch.as_tensor(batch.actions))
            values, last_values = policy.critic(observations)[:, 0], policy.critic(last)[:, 0]
        np.testing.assert_allclose(batch.agent_infos["log_prob"], log_probs, atol=1e-4)
        np.testing.assert_allclose(batch.values, values, atol=1e-4)
        np.testing.assert_allclose(batch.last_values, np.where(batch.terminated, 0.0, last_values), atol=1e-4)
        for observation, action, following, reward in zip(
            batch.observations, batch.actions, batch.next_observations, batch.rewards, strict=True
        ):
            env.state, env.steps_beyond_terminated = observation.astype(np.float64), None
            stepped, paid, *_ = env.step(action)
            np.testing.assert_allclose(stepped, following, atol=1e-4)
            assert paid == reward
    if go_on:  # the second goes on where the first was cut
        assert first.cut.sum() == second.continued.sum() > 0
        begins = second.observations[second.starts[second.continued]]
        np.testing.assert_array_equal(first.last_observations[first.cut], begins)
