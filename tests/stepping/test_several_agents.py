"""Managers of environments with several agents: batches are those of samplers, and policies see what is theirs."""

from __future__ import annotations

import contextlib
import functools
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from streamsampler import EnvManager, Limits, LocalSampler, MultiAgentBatch, SerialEnvManager, SetParameters
from streamsampler.data.trees import same
from streamsampler.errors import ActionError, DataError, RolloutError, UsageError, WorkerError
from tests.patience import closing_patiently
from tests.scripted.games import Comings, Stay, Turns
from tests.several.test_equal_to_plain_loops import AllAtOnce, Early
from tests.several.test_errors import ShortTurns, beginning, blinded, emptied, stranger, vanishing, with_part
from tests.several.test_fragments import DyingTurns, Waits
from tests.several.test_lives import Crowd, Unannounced, kind_of
from tests.several.test_masks import InTurn, Parallel, allowed
from tests.several.test_staleness import Dying
from tests.stepping.conftest import MODES, kill
from tests.stepping.environments import Counting
from tests.stepping.test_random_programs import FIELDS, LED_THERE, STEPS, Program
from tests.tiers import mostly_slow

TOGETHER = "rewards", "terminated", "truncated", "lengths", "env_infos", "agent_infos", "episode_infos", "indices"
OF_POLICIES = (*TOGETHER, "observations", "actions", "last_observations", "agent_ids", "episode_numbers")
GAMES = [Comings, Turns, Waits, AllAtOnce, Early, lambda: Unannounced(Comings()), lambda: Unannounced(Turns())]


class Following:
    """Acts on what it sees alone."""

    def __init__(self, shift: int = 0) -> None:
        self.shift = shift

    def get_action(self, observation: Any) -> Any:
        return int(observation.sum() + self.shift) % 4, {"at": float(observation[1])}


def asked(policies: Mapping[str, Any], steps: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the actions of policies, and their infos."""
    actions, infos = {}, {}
    for name in steps.policies:
        answers = [policies[name].get_action(it) for it in steps[name].observations]
        actions[name] = np.array([action for action, _ in answers], np.int64)
        if answers:
            infos[name] = {"at": np.array([info["at"] for _, info in answers])}
    return actions, infos


RED_AND_BLUE: dict[str, Any] = {"red": Following(), "blue": Following(1)}


def recorded(manager: Any, n: int = 10, policies: Any = RED_AND_BLUE, before: Any = None) -> Any:
    """Return a batch of n episodes."""
    recorder = manager.recorder()
    steps = manager.reset()
    recorder.add(steps)
    number = 0
    while len(recorder) < n:
        actions, infos = asked(policies, steps)
        if before is not None:
            before(number)
        number += 1
        steps = manager.step(actions)
        recorder.add(steps, infos)
        if manager.autoreset == "disabled" and steps.ended.all():  # these games are equally long
            steps = manager.reset()
            recorder.add(steps)
    return recorder.take(n)


def assert_a_samplers(batch: MultiAgentBatch, env: Any, policies: Any = RED_AND_BLUE, **options: Any) -> None:
    with LocalSampler(policies, env, check=None, **options) as sampler:
        expected: Any = sampler.obtain_trajectories(seeds=list(batch.seeds))
    for field in TOGETHER:
        assert same(getattr(batch, field), getattr(expected, field)), field
    assert list(batch.policies) == list(expected.policies)
    for name, found in batch.policies.items():
        for field in OF_POLICIES:
            assert same(getattr(found, field), getattr(expected[name], field)), (name, field)
        assert same(found.agents, expected[name].agents)


@pytest.mark.parametrize("game", mostly_slow(GAMES, 3))
@pytest.mark.parametrize("autoreset", mostly_slow(MODES, 2))
def test_batches_are_those_of_samplers(new_manager: Any, game: Any, autoreset: Any) -> None:
    batch = recorded(new_manager(game, n_envs=3, seed=1, autoreset=autoreset))
    assert isinstance(batch, MultiAgentBatch)
    assert (batch.indices.tolist(), batch.agent_version, batch.seed) == (list(range(10)), 0, 1)
    assert_a_samplers(batch, game)


@pytest.mark.parametrize(
    "options", mostly_slow([{"engine": "queues"}, {"start_method": "spawn"}, {"start_method": "forkserver"}], 2)
)
@pytest.mark.parametrize("game", mostly_slow([Turns, Comings]))
def test_batches_are_those_of_samplers_however_workers_are_started(options: Any, game: Any) -> None:
    how = closing_patiently(options)
    with EnvManager(game, n_envs=3, n_workers=2, seed=1, verify="steps", **how) as manager:
        batch = recorded(manager, 6, before=lambda number: kill(manager, 1) if number == 4 else None)
        assert manager.stats.restored
        assert not manager.stats.not_restored
    assert_a_samplers(batch, game)


@pytest.mark.parametrize("game", mostly_slow([Turns, Comings], 2))
@pytest.mark.parametrize("autoreset", mostly_slow(["same_step", "next_step"]))
@pytest.mark.parametrize("verify", mostly_slow(["last", "steps"]))
def test_a_worker_that_dies_changes_nothing(game: Any, autoreset: Any, verify: Any, tmp_path: Path) -> None:
    """Neither in the middle of steps nor between them."""
    dying = functools.partial(DyingTurns if game is Turns else Dying, tmp_path, 2)
    how = {"n_envs": 3, "n_workers": 2, "seed": 1, "autoreset": autoreset, "verify": verify, "max_restarts": 99}
    with EnvManager(dying, **how, **closing_patiently({})) as manager:
        batch = recorded(manager, 12, before=lambda number: kill(manager, number) if number in (3, 8) else None)
        assert manager.stats.restored > 2
        assert not manager.stats.not_restored
    assert list(tmp_path.iterdir())
    assert_a_samplers(batch, game)


def test_what_comes_out_otherwise_for_one_agent_is_found(tmp_path: Path) -> None:
    class Unfaithful(Dying):
        def seen(self, agent: str) -> Any:
            changes = agent == "blue_1" and any(self.folder.iterdir())
            return super().seen(agent) + np.float32(changes)

    with EnvManager(lambda: Unfaithful(tmp_path, 1), n_envs=1, seed=1, **closing_patiently({})) as manager:
        steps = manager.reset()
        while not steps.ended.any():
            steps = manager.step(asked(RED_AND_BLUE, steps)[0])
        assert steps.failed.tolist() == [True]
        assert manager.stats.not_restored == 1


@pytest.mark.parametrize("game", mostly_slow([lambda: Unannounced(Comings()), Crowd], 2))
def test_who_plays_whom_may_depend_on_the_episode(new_manager: Any, game: Any) -> None:
    def policy_of(agent: str, index: int) -> str:
        return "ab"[(index + len(agent)) % 2] if game is not Crowd else kind_of(agent, index)

    policies = {"a": Following(), "b": Following(1)}
    batch = recorded(new_manager(game, n_envs=3, seed=1, policy_of=policy_of), 9, policies)
    assert_a_samplers(batch, game, policies, policy_of=policy_of)


def test_a_dict_says_who_plays_whom() -> None:
    names = {"red_0": "b", "red_1": "a", "blue_0": "b", "blue_1": "b"}
    policies = {"a": Following(), "b": Following(1)}
    with SerialEnvManager(Comings, n_envs=2, seed=1, policy_of=names) as manager:
        batch = recorded(manager, 4, policies)
    assert_a_samplers(batch, Comings, policies, policy_of=names)


@pytest.mark.parametrize("min_envs", mostly_slow([1, 2]))
def test_whichever_environments_are_ready(new_manager: Any, min_envs: int) -> None:
    """And whichever of their results the caller selects."""
    manager = new_manager(Turns, n_envs=3, seed=1, autoreset="same_step")
    recorder = manager.recorder()
    manager.async_reset()
    said: dict[int, Any] = {}
    while len(recorder) < 8:
        steps = manager.recv(min_envs)
        infos: dict[str, Any] = {}
        for row, env_id in enumerate(steps.env_ids.tolist()):
            for name, its in said.pop(env_id, {}).items():
                if steps.timesteps[row]:
                    infos.setdefault(name, {"at": []})["at"] += its["at"].tolist()
        recorder.add(steps, infos)
        for row in reversed(range(len(steps))):
            one = steps.select([row])
            actions, said[int(one.env_ids[0])] = asked(RED_AND_BLUE, one)
            manager.send(actions, one.env_ids)
    assert_a_samplers(recorder.take(8), Turns)


def test_episodes_that_a_reset_cuts_short_are_left_out(new_manager: Any) -> None:
    manager = new_manager(Comings, n_envs=2, seed=1, autoreset="disabled")
    recorder = manager.recorder()
    steps = manager.reset()
    recorder.add(steps)
    steps = manager.step(asked(RED_AND_BLUE, steps)[0])
    recorder.add(steps)
    recorder.add(manager.reset([0]))
    assert recorder.n_left_out == 1
    assert recorder.missing == [1]


def test_an_empty_batch_and_infos_that_cannot_be() -> None:
    with SerialEnvManager(Comings, n_envs=2, seed=1) as manager:
        recorder = manager.recorder()
        assert len(recorder.take()) == 0
        recorder.add(manager.reset())
        steps = manager.step(manager.random_actions())
        for wrong, words in [
            ([1], "must be a dict of dicts by policy, got"),
            ({"red": 3}, r"agent_infos\['red'\] must be a dict of arrays"),
            ({"red": {"x": [1.0]}}, "should have one row for each of 4"),
        ]:
            with pytest.raises(DataError, match=words):
                recorder.add(steps, wrong)  # type: ignore[arg-type]
        recorder.add(steps, {"red": {"x": [1.0] * 4}})


def test_actions_outside_their_space_that_an_environment_took() -> None:
    class Tolerant(Comings):
        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(2)

    with SerialEnvManager(Tolerant, n_envs=2, seed=1, autoreset="same_step") as manager:
        recorder = manager.recorder()
        steps = manager.reset()
        recorder.add(steps)
        words = "agent 'red_0': action is outside its space: .*of an episode of environment 0: the episode is left out"
        while not steps.ended.any():
            actions = {name: np.zeros(len(steps[name]), np.int64) for name in steps.policies}
            actions["red"][0] = 3
            steps = manager.step(actions)
            with pytest.raises(ActionError, match=words) if steps.ended.any() else contextlib.nullcontext():
                recorder.add(steps)
        assert recorder.n_left_out == 1


def test_a_policy_sees_who_acts_and_who_has_ended(new_manager: Any) -> None:
    manager = new_manager(Comings, n_envs=2, seed=1)
    steps = manager.reset()
    red, blue = steps["red"], steps["blue"]
    assert steps.policies == ("blue", "red")
    assert red.agent_ids.tolist() == ["red_0", "red_1"] * 2
    assert (red.rows.tolist(), red.env_ids.tolist()) == ([0, 0, 1, 1], [0, 0, 1, 1])
    assert blue.agent_ids.tolist() == ["blue_1"] * 2
    assert red.observations.dtype == np.float32
    assert red.observations.tolist() == [steps.observations[e][f"red_{i}"].tolist() for e in (0, 1) for i in (0, 1)]
    assert red.rewards.tolist() == [0.0] * 4
    assert same(red.infos, {"began": np.zeros(4, np.int64), "_began": np.ones(4, np.bool_)})
    assert len(red.ended) == 0
    for _ in range(3):
        steps = manager.step({"red": [1, 2, 3, 0], "blue": np.zeros(len(steps["blue"]), int)})
    red = steps["red"]
    assert (red.agent_ids.tolist(), red.rewards.tolist()) == (["red_1", "red_1"], [2.375, 0.375])
    assert red.ended.agent_ids.tolist() == ["red_0", "red_0"]
    assert red.ended.rewards.tolist() == [1.375, 3.375]
    assert red.ended.terminated.tolist() == [True, True]
    assert not np.concatenate([red.ended.truncated, red.terminated, red.truncated]).any()
    assert same(red.ended.observations, np.stack([it["red_0"] for it in steps.observations]))
    assert red.ended.infos["name"].tolist() == ["red_0"] * 2
    only = steps.select([1])
    assert (only["red"].env_ids.tolist(), only["red"].rows.tolist()) == ([1], [0])
    assert steps.by_env()[1]["red"].ended.rewards.tolist() == [3.375]
    for _ in range(4):
        steps = manager.step({name: np.ones(len(steps[name]), int) for name in steps.policies})
    assert steps.ended.all()
    assert [len(steps[name]) for name in steps.policies] == [0, 0]
    assert steps["red"].observations.shape == (0, 3)
    assert steps["red"].ended.truncated.all()
    assert steps["blue"].ended.terminated.all()
    assert steps.rewards.tolist() == [sum(steps[it].ended.rewards[row] for it in steps.policies) for row in (0, 1)]


def test_the_next_episode_may_begin_in_the_same_step(new_manager: Any) -> None:
    manager = new_manager(Comings, n_envs=2, seed=1, autoreset="same_step")
    steps = manager.reset()
    while not steps.ended.any():
        steps = manager.step({name: np.ones(len(steps[name]), int) for name in steps.policies})
    red = steps["red"]
    assert red.agent_ids.tolist() == ["red_0", "red_1"] * 2
    assert red.rewards.tolist() == [0.0] * 4
    assert same(red.observations[0], steps.observations[0]["red_0"])
    assert red.ended.agent_ids.tolist() == ["red_1"] * 2
    assert same(red.ended.observations[0], steps.last_observations[0]["red_1"])
    assert red.ended.infos["t"].tolist() == [7, 7]
    assert red.infos["began"].tolist() == [0] * 4


def test_in_turns_only_the_agent_whose_turn_it_is_acts(new_manager: Any) -> None:
    """What it gets is all since its last action; those that ended have last turns, in which nobody acts."""
    manager = new_manager(Turns, n_envs=2, seed=1)
    steps, seen = manager.reset(), []
    while not steps.ended.any():
        view = {name: steps[name] for name in steps.policies}
        seen.append({str(it) for each in view.values() for it in each.agent_ids[each.env_ids == 0]})
        steps = manager.step({name: [1] * len(each) for name, each in view.items()})
    assert {len(it) for it in seen} == {0, 1}
    assert set().union(*seen) == {"red_0", "red_1", "blue_1"}  # `blue_0` ends before its turn comes


@pytest.mark.parametrize("game", GAMES)
@pytest.mark.parametrize("autoreset", mostly_slow(["same_step", "next_step"]))
def test_what_policies_see_is_what_is_recorded(game: Any, autoreset: Any) -> None:
    """Of each agent all rewards, and once its end."""
    acted: dict[tuple[int, str], list[Any]] = {}
    ended: dict[tuple[int, str], Any] = {}
    with SerialEnvManager(game, n_envs=2, seed=1, autoreset=autoreset) as manager:
        recorder = manager.recorder()
        steps = manager.reset()
        recorder.add(steps)
        while len(recorder) < 6:
            actions, _ = asked(RED_AND_BLUE, steps)
            before, steps = steps, manager.step(actions)
            recorder.add(steps)
            for name in steps.policies:
                view = steps[name]
                numbers = steps.episodes + (steps.ended if autoreset == "same_step" else 0)
                for at, agent in enumerate(view.agent_ids.tolist()):
                    key = int(view.env_ids[at] + 2 * numbers[view.rows[at]]), agent
                    acted.setdefault(key, []).append(view.rewards[at])
                over = view.ended
                for at, agent in enumerate(over.agent_ids.tolist()):
                    key = int(over.env_ids[at] + 2 * steps.episodes[over.rows[at]]), agent
                    acted.setdefault(key, []).append(over.rewards[at])
                    assert key not in ended
                    ended[key] = over.observations[at], over.terminated[at], over.truncated[at]
            assert set(before.policies) >= {name for name in actions if len(actions[name])}
        batch: Any = recorder.take(6)
    for part in (it for policy in batch.policies.values() for it in policy):
        key = int(part.indices[0]), str(part.agent_ids[0])
        assert sum(acted.pop(key)) == sum(part.rewards)
        assert same(ended.pop(key), (part.last_observations[0], part.terminated[0], part.truncated[0]))
    assert not [key for key in (*acted, *ended) if key[0] < 6]


@pytest.mark.parametrize("game", mostly_slow([Parallel, InTurn], 2))
@pytest.mark.parametrize("place", mostly_slow(["info", "observation"]))
def test_masks(new_manager: Any, game: Any, place: str) -> None:
    """The games raise at what is not allowed."""
    manager = new_manager(functools.partial(game, place), n_envs=2, seed=1, on_failure="raise")
    steps, n_ended = manager.reset(), 0
    while n_ended < 4:
        actions = {}
        for name in steps.policies:
            masks = steps[name].action_masks
            assert masks.shape == (len(steps[name]), 5)
            shown = steps[name].observations
            times = (shown if place == "info" else shown["numbers"])[:, 1]
            assert same(masks, np.array([allowed(name, int(t)) for t in times], bool).reshape(-1, 5))
            actions[name] = masks.argmax(1)
        steps = manager.step(actions)
        n_ended += steps.ended.sum()
    assert not manager.failures


def test_results_are_the_callers_to_change() -> None:
    class Reusing(Comings):
        def seen(self, agent: str) -> Any:
            if not hasattr(self, "kept"):
                self.kept = {it: np.zeros(3, np.float32) for it in self.possible_agents}
            self.kept[agent][:] = super().seen(agent)
            return self.kept[agent]

    with SerialEnvManager(Reusing, n_envs=2, seed=1, on_failure="restore") as manager:
        steps = manager.reset()
        assert len({it.tobytes() for it in steps["red"].observations}) == 4
        first = steps["red"].observations.copy()
        for it in (*steps.observations, *steps.last_observations):
            it["red_0"][:] = -1
        assert same(steps["red"].observations, first)
        steps = manager.step(manager.random_actions())
        assert same(steps.previous_observations[0]["red_0"], first[0])
        assert same(manager.observations()[0]["red_0"], manager.ready[0]["red_0"])


def test_random_actions_are_a_function_of_the_seed() -> None:
    streams = []
    for new, options in ((SerialEnvManager, {}), (EnvManager, {"n_workers": 2, **closing_patiently({})})):
        with new(Comings, n_envs=3, seed=5, **options) as manager:
            manager.reset()
            steps = [manager.step(manager.random_actions()) for _ in range(12)]
            streams.append([(it.actions, it.rewards) for it in steps])
    assert same(*streams)
    assert len({repr(it) for it, _ in streams[0]}) > 6


def test_what_is_sent_is_for_those_that_are_to_act(new_manager: Any) -> None:
    """And nothing is sent otherwise."""
    manager = new_manager(Comings, n_envs=2, seed=1)
    blue = {"blue": [0, 0]}
    wrong: list[tuple[Any, Any, Any, str]] = [
        ([0, 1], None, UsageError, "need actions by policy: manager.step"),
        ({0: {"red_0": 1}}, None, UsageError, "need actions by policy"),
        ({"green": [1], **blue}, None, UsageError, "no policy 'green'; the policies are 'red', 'blue'"),
        (
            blue,
            None,
            UsageError,
            r"actions of policy 'red' are missing, but its agents \['red_0', 'red_1', 'red_0', 'red_1'\]",
        ),
        ({}, None, UsageError, "actions of policy 'red' are missing"),
        ({"red": [1, 2, 3], **blue}, None, ActionError, r"batch of 4 has the shape \(3,\).*action of policy 'red'"),
        ({"red": [1, 2, 3, 0], **blue}, [1], ActionError, r"batch of 2 has the shape \(4,\)"),
        ({"red": [1, 2, 0.5, 0], **blue}, None, ActionError, "action of policy 'red'"),
        ({"red": [1, 2, 3, 0], **blue}, [5], UsageError, "there is no environment 5"),
    ]
    with pytest.raises(UsageError, match=r"environment 0 is .* does not wait for an action"):
        manager.step({})
    manager.reset()
    for actions, env_ids, error, words in wrong:
        with pytest.raises(error, match=words):
            manager.send(actions, env_ids)
    steps = manager.step({"red": [1, 2, 3, 0], **blue})
    assert (steps.timesteps.tolist(), steps.result_numbers.tolist()) == ([1, 1], [1, 1])
    assert steps.actions.tolist()[1] == {"red_0": 3, "red_1": 0, "blue_1": 0}
    manager.send(asked(RED_AND_BLUE, steps)[0])
    with pytest.raises(UsageError, match=r"environment 0 is .* does not wait for an action"):
        manager.random_actions()
    manager.recv(2)


def test_a_policy_none_of_whose_agents_acts_sends_nothing() -> None:
    with SerialEnvManager(Turns, n_envs=2, seed=1) as manager:
        manager.reset()
        with pytest.raises(ActionError, match="action of policy 'blue'"):
            manager.step({"red": [1, 1], "blue": [1]})
        for nothing in ([], np.zeros(0, int)):
            steps = manager.step({"red": [1] * 2, "blue": nothing} if manager.stats.kept_timesteps == 0 else {})
            if steps.policies == ("red",):
                break


@pytest.mark.parametrize(
    ("env", "policy_of", "words"),
    [
        (Comings, 3, r"policy_of is a function \(agent_id, trajectory_index\)"),
        (Comings, {"red_0": 1}, "names the policy 1 for agent 'red_0': names must be strings"),
        (Comings, {"red_0": "a"}, "policy_of names no policy for agent 'red_1'"),
        (Comings, lambda agent, index: None, "names the policy None for agent 'red_0'"),
        (Counting, {"red_0": "a"}, "policy_of= is for environments of several agents"),
        ([Comings, Counting], None, "some of these environments have a single agent, and some have several"),
    ],
)
def test_who_cannot_play_whom(new_manager: Any, env: Any, policy_of: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        new_manager(env, n_envs=2, policy_of=policy_of).reset()


def test_a_policy_plays_agents_with_the_same_spaces() -> None:
    class Unlike(Comings):
        def action_space(self, agent: str) -> Any:
            return spaces.Discrete(4 if agent == "red_0" else 5)

    words = "policy 'red' plays 'red_0' and 'red_1', whose spaces differ.*policy_of="
    for policy_of in (None, lambda agent, _: agent.split("_")[0]):
        with pytest.raises(UsageError, match=words), SerialEnvManager(Unlike, n_envs=1, policy_of=policy_of) as manager:
            manager.reset()


def test_environments_of_one_agent_have_no_policies() -> None:
    with SerialEnvManager(Counting, n_envs=1) as manager:
        steps = manager.reset()
        for call in (lambda: steps.policies, lambda: steps["red"]):
            with pytest.raises(UsageError, match="have a single agent"):
                call()


def test_unknown_policies_and_vector_environments_are_refused() -> None:
    with SerialEnvManager(Comings, n_envs=1, seed=1, autoreset="same_step") as manager:
        with pytest.raises(KeyError, match="no policy 'green' here; the policies are 'red', 'blue'"):
            manager.reset()["green"]
        for call in (manager.vector_env, manager.sb3_env):
            with pytest.raises(UsageError, match="these have several"):
                call()


def test_environments_may_have_other_agents() -> None:
    """As long as they need not be alike."""
    envs = [Comings, lambda: Comings({"red_0": Stay(0, 2)}), Turns]
    with SerialEnvManager(envs, n_envs=3, seed=1) as manager:
        steps = manager.reset()
        assert steps["red"].env_ids.tolist() == [0, 0, 1, 2]
        assert manager.step(manager.random_actions()).timesteps.tolist() == [1, 1, 1]
        with pytest.raises(UsageError, match=r"of the agents red_0, .*at once: here all environments must"):
            manager.recorder()
        assert list(manager.action_spaces[2]) == list(Turns.possible_agents)


WRONG: list[tuple[Any, str]] = [
    (with_part(1, None, red_1=None), "a step gave no reward, terminated or truncated of agent 'red_1', which acted"),
    (with_part(1, None, red_1="x"), "agent 'red_1': "),
    (with_part(0, None, red_1=np.zeros(4, np.float32)), r"agent 'red_1': observation has the shape \(4,\)"),
    (with_part(0, None, red_1=None), "the acting agent 'red_1' has no observation"),
    (with_part(0, None, red_0=None, at=3), "agent 'red_0', which has ended, has no last observation"),
    (with_part(2, None, red_1=2), "terminated of 'red_1'"),
    (with_part(3, 7), "truncated must be a dict by agent"),
    (with_part(4, 7), "infos must be a dict by agent"),
    (beginning(emptied), "no agent acted in the whole trajectory"),
    (beginning(blinded), "the acting agent 'red_1' has no observation"),
    (lambda: _Changed(vanishing), "the agent 'red_1' is gone, and was neither terminated nor truncated"),
    (lambda: _Changed(stranger), r"the agents \['green_7'\] are not among possible_agents"),
    (ShortTurns, r"last\(\) must return"),
]


class _Changed(Comings):
    def __init__(self, change: Any) -> None:
        super().__init__()
        self.change = change

    def step(self, actions: Any) -> Any:
        return self.change(self, *super().step(actions))


@pytest.mark.parametrize(("game", "words"), WRONG)
def test_what_is_wrong_with_an_environment_is_a_failure_of_it(game: Any, words: str) -> None:
    with SerialEnvManager(game, n_envs=1, seed=1, on_failure="raise", max_restarts=0) as manager:
        with pytest.raises(WorkerError) as error:  # noqa: PT012 - in which step it is raised depends on the game
            steps = manager.reset()
            while not steps.ended.any():
                steps = manager.step(asked(RED_AND_BLUE, steps)[0])
        assert "environment 0" in str(error.value)
        text = f"{error.value} {error.value.__cause__}"
        assert re.search(words, text), text


@pytest.mark.parametrize("autoreset", MODES)
def test_an_episode_that_failed_ends_for_those_that_were_to_act(new_manager: Any, autoreset: Any) -> None:
    class Raising(Comings):
        def step(self, actions: Any) -> Any:
            if 3 in actions.values():
                raise RuntimeError("three")
            return super().step(actions)

    manager = new_manager(Raising, n_envs=2, seed=1, on_failure="reset", autoreset=autoreset)
    recorder = manager.recorder()
    recorder.add(manager.reset())
    steps = manager.step({"red": [1, 1, 3, 1], "blue": [0, 0]})
    recorder.add(steps)
    assert (steps.failed.tolist(), steps.truncated.tolist()) == ([False, True], [False, True])
    ended = steps["red"].ended
    assert (ended.agent_ids.tolist(), ended.env_ids.tolist()) == (["red_0", "red_1"], [1, 1])
    assert (ended.truncated.all(), ended.rewards.tolist()) == (True, [0.0, 0.0])
    assert set(steps["red"].env_ids.tolist()) == ({0, 1} if autoreset == "same_step" else {0})
    assert recorder.n_left_out == 1
    if autoreset == "disabled":
        steps = manager.reset()
    actions, _ = asked({"red": Following(), "blue": Following()}, steps)
    assert manager.step({name: it % 3 for name, it in actions.items()}).failed.tolist() == [False, False]


@pytest.mark.parametrize("autoreset", MODES)
def test_environments_that_say_that_they_are_abnormal(autoreset: Any) -> None:
    def abnormal(infos: Any) -> bool:
        return any(isinstance(it, dict) and it.get("t") == 3 for it in infos.values())

    with SerialEnvManager(Comings, n_envs=1, seed=1, autoreset=autoreset, abnormal=abnormal) as manager:
        steps = manager.reset()
        while not steps.ended.any():
            steps = manager.step(asked(RED_AND_BLUE, steps)[0])
        assert (steps.failed.tolist(), steps.timesteps.tolist(), len(steps["red"])) == ([True], [3], 0)
        assert steps["red"].ended.truncated.all()
        steps = manager.reset()
        assert len(steps["red"]) == 2


def test_errors_are_raised_and_the_environment_is_reset(new_manager: Any) -> None:
    class Raising(Comings):
        def step(self, actions: Any) -> Any:
            if 3 in actions.values():
                raise RuntimeError("three")
            return super().step(actions)

    manager = new_manager(Raising, n_envs=2, seed=1, on_failure="raise")
    manager.reset()
    with pytest.raises(RolloutError, match="three"):
        manager.step({"red": [1, 1, 3, 1], "blue": [0, 0]})
    steps = manager.recv(1)
    assert steps.env_ids.tolist() == [0]
    manager.reset([1])
    assert manager.step({"red": [1, 1], "blue": [0]}, [0]).timesteps.tolist() == [2]


def test_actions_that_an_environment_refuses_are_the_callers_fault(new_manager: Any) -> None:
    class Strict(Comings):
        def step(self, actions: Any) -> Any:
            assert all(action < 4 for action in actions.values())
            return super().step(actions)

    manager = new_manager(Strict, n_envs=2, seed=1)
    manager.reset()
    with pytest.raises(RolloutError) as error:
        manager.step({"red": [9, 0, 0, 0], "blue": [0, 0]})
    assert f"the action {np.int64(9)!r} of agent 'red_0' is outside Discrete(4)" in str(error.value)
    assert not manager.failures


@pytest.mark.parametrize("autoreset", MODES)
def test_so_many_episodes(new_manager: Any, autoreset: Any) -> None:
    manager = new_manager(Comings, n_envs=2, seed=1, autoreset=autoreset, max_episodes=2)
    steps, n_ended = manager.reset(), 0
    while n_ended < 4:
        steps = manager.step(asked(RED_AND_BLUE, steps)[0])
        n_ended += steps.ended.sum()
        if autoreset == "disabled" and steps.ended.any() and n_ended < 4:
            steps = manager.reset()
    assert [len(steps[name]) for name in steps.policies] == [0, 0]
    assert {state.name for state in manager.states} == {"FINISHED"}
    with pytest.raises(UsageError, match="FINISHED"):
        manager.step({})


class SeveralProgram(Program):
    """Sends random actions to agents in both managers."""

    def compare(self, steps: Any) -> None:
        expected = self.alone.recv_from(steps.env_ids)
        for name in FIELDS:
            rows = steps.timesteps > 0 if name in LED_THERE else slice(None)
            assert same(getattr(steps, name)[rows], getattr(expected, name)[rows]), name
        assert steps.policies == expected.policies
        for one, other in ((steps[it], expected[it]) for it in steps.policies):
            for ours, theirs in ((one, other), (one.ended, other.ended)):
                for name in ("env_ids", "agent_ids", "observations", "rewards", "terminated", "truncated", "infos"):
                    assert same(getattr(ours, name), getattr(theirs, name)), name
        assert not steps.failed.any()

    def _actions(self, chosen: Any) -> tuple[list[int], Any]:
        ready = [env_id for env_id in chosen if env_id in self.dying.ready]
        actions = self.dying.random_actions(ready)
        self.alone.send(actions, ready)
        return ready, actions

    def send(self, chosen: Any, _: Any) -> None:
        ready, actions = self._actions(chosen)
        self.dying.send(actions, ready)

    def step(self, chosen: Any, _: Any) -> None:
        ready, actions = self._actions(chosen)
        self.compare(self.dying.step(actions, ready))


@pytest.mark.slow
@pytest.mark.parametrize("game", [Turns, pytest.param(Comings, marks=pytest.mark.slow)])
@pytest.mark.parametrize("autoreset", mostly_slow(["same_step", "next_step"]))
def test_random_programs_give_the_same_whoever_is_killed(game: Any, autoreset: Any) -> None:
    how: dict[str, Any] = {"n_envs": 3, "seed": 0, "autoreset": autoreset, "max_restarts": None}
    how["limits"] = Limits(max_lifetime_restarts=None)

    @given(st.lists(STEPS, max_size=25))
    @settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    def run(program: Any) -> None:
        running = SeveralProgram(dying, alone)
        for kind, mask, value in program:
            getattr(running, kind)([env_id for env_id in range(3) if mask >> env_id & 1], value)
            assert sorted(dying.ready) == sorted(alone.ready)
        running.recv(range(3), None)
        assert not dying.stats.not_restored

    with EnvManager(game, n_workers=2, **how) as dying, SerialEnvManager(game, **how) as alone:
        run()


class Scaled(Comings):
    """Shows a number that parameters set."""

    scale = 1.0

    def set_parameters(self, parameters: Any) -> None:
        self.scale = parameters["scale"]

    def seen(self, agent: str) -> Any:
        return super().seen(agent) * np.float32(self.scale)


def test_attributes_and_parameters_are_the_environments(new_manager: Any) -> None:
    manager = new_manager(Scaled, n_envs=2, seed=1)
    manager.reset()
    assert manager.get_attr("scale") == [1.0, 1.0]
    manager.set_attr("scale", [2.0, 3.0])
    assert manager.get_attr("scale") == [2.0, 3.0]
    assert [list(it) for it in manager.get_attr("agents")] == [["red_0", "red_1", "blue_1"]] * 2
    steps = manager.step(manager.random_actions())
    assert steps["red"].observations[0, 1] == 2.0
    manager.set_parameters(SetParameters({"scale": 4.0}))
    steps = manager.reset()
    assert [it["parameters"] for it in steps.info_by_row.values()] == [{"scale": 4.0}] * 2
    assert manager.get_attr("scale") == [4.0, 4.0]


def test_parameters_besides_those_that_an_environment_has(new_manager: Any) -> None:
    manager = new_manager(SetParameters({"scale": 2.0}, lambda: Scaled()), n_envs=2, seed=1)
    manager.reset()
    assert manager.get_attr("scale") == [2.0, 2.0]
    manager.set_parameters({"scale": 4.0})
    assert manager.reset().info_by_row[1]["parameters"] == {"scale": 4.0}
    assert manager.get_attr("scale") == [4.0, 4.0]


def test_the_loop_of_ml_agents(new_manager: Any) -> None:
    """For each behaviour, whose agents ask for a decision or have ended; then a step of the environment."""
    env = new_manager(Comings, n_envs=2, seed=1)
    returns: dict[tuple[int, str], float] = {}
    finished = []
    steps = env.reset()
    for _ in range(30):
        actions = {}
        for name in steps.policies:
            decision, terminal = steps[name], steps[name].ended
            for one in (decision, terminal):
                for key, reward in zip(zip(one.env_ids, one.agent_ids, strict=True), one.rewards, strict=True):
                    returns[key] = returns.get(key, 0.0) + reward
            finished += [returns.pop(key) for key in zip(terminal.env_ids, terminal.agent_ids, strict=True)]
            actions[name] = np.ones(len(decision), np.int64)
        steps = env.step(actions)
    with LocalSampler(lambda observation: 1, Comings, seed=1, check=None) as sampler:
        batch: Any = sampler.obtain_trajectories(2)
    expected = sorted(batch.policies["shared"].returns.tolist())[: len(finished)]
    assert len(finished) > 12
    assert set(expected) <= set(finished)
