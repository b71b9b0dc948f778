"""C5 for several agents: what is wrong ends the call, with one error that says what, where and what to do."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import streamsampler
from streamsampler import EnvManager, ExistingEnvUpdate, SerialEnvManager, VecWorker
from streamsampler.data.agent_rows import OF_AGENTS
from streamsampler.errors import RolloutError, UsageError
from streamsampler.protocol.messages import Ticket
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.hooks import pickled_hooks
from tests.scripted.games import IDS, Chooser, Comings, Stay, Turns
from tests.workers.contexts import context_of, new_board

# Calls return a `MultiAgentBatch`, which type checkers cannot know.
LocalSampler: Any = streamsampler.LocalSampler
MultiprocessingSampler: Any = streamsampler.MultiprocessingSampler


class Silent:
    """Hooks that do nothing, with which the slower loop runs."""

    def on_trajectory_end(self, context: Any) -> None:
        return


BOTH_LOOPS = pytest.mark.parametrize("options", [{}, {"hooks": Silent()}], ids=["fast", "hooks"])


def raised(env: Any, agent: Any = None, n: int = 2, **options: Any) -> RolloutError:
    options = {"check": None, **options}
    with LocalSampler(agent or Chooser(), env, seed=1, **options) as sampler, pytest.raises(RolloutError) as error:
        sampler.obtain_trajectories(n)
    return error.value


def changed(name: str, change: Any, at: int = 2) -> type[Comings]:
    """Return the game with one part of what a step returns changed, from some step on."""
    position = ("observations", "rewards", "terminated", "truncated", "infos").index(name)

    class Changed(Comings):
        def step(self, actions: Any) -> Any:
            result = list(super().step(actions))
            if self.t >= at:
                result[position] = change(result[position])
            return tuple(result)

    return Changed


def without(agent: str) -> Any:
    return lambda part: {key: value for key, value in part.items() if key != agent}


@BOTH_LOOPS
@pytest.mark.parametrize(
    ("name", "change", "words"),
    [
        ("observations", without("red_1"), "no observation of agent 'red_1', which is to act"),
        ("observations", lambda part: {**part, "red_1": np.zeros(7)}, "agent 'red_1': .*observation has the shape"),
        ("observations", lambda part: 3, "observations must be a dict by agent, and are 3"),
        ("rewards", without("red_0"), "a step gave no reward, or not both ends, of agent 'red_0', which acted"),
        ("rewards", lambda part: {**part, "red_0": "much"}, "agent 'red_0': the reward should be a number"),
        ("rewards", lambda part: 1.0, "dict"),
        ("terminated", lambda part: {**part, "red_1": "maybe"}, "terminated of 'red_1' should be True or False"),
        ("truncated", without("red_1"), "a step gave no reward, or not both ends, of agent 'red_1'"),
        ("infos", lambda part: {**part, "red_1": [1]}, "the info of agent 'red_1' must be a dict"),
        ("infos", lambda part: 1, "dict"),
    ],
)
def test_what_a_step_returns(name: str, change: Any, words: str, options: Any) -> None:
    error = raised(changed(name, change), **options)
    assert re.search(words, str(error)), str(error)
    assert error.trajectory == 0


@BOTH_LOOPS
@pytest.mark.parametrize("ends", [True, False])
def test_ends_that_are_no_dicts(ends: bool, options: Any) -> None:
    class Flat(Comings):
        def step(self, actions: Any) -> Any:
            observations, rewards, *_, infos = super().step(actions)
            return observations, rewards, ends, False, infos

    assert "dicts by agent" in str(raised(Flat, **options))


@BOTH_LOOPS
def test_a_step_that_returns_something_else(options: Any) -> None:
    class Short(Comings):
        def step(self, actions: Any) -> Any:
            return super().step(actions)[:4]

    assert "step must return (observation" in str(raised(Short, **options))


@BOTH_LOOPS
def test_last_observations_are_needed(options: Any) -> None:
    error = raised(changed("observations", without("red_0"), at=3), **options)
    assert "there is no last observation of agent 'red_0', which has ended" in str(error)


@BOTH_LOOPS
def test_an_agent_that_is_gone_without_an_end(options: Any) -> None:
    class Vanishing(Comings):
        def step(self, actions: Any) -> Any:
            result = super().step(actions)
            if self.t == 2:
                self.agents.remove("red_1")
            return result

    assert "the agent 'red_1' is gone, and was neither terminated nor truncated" in str(raised(Vanishing, **options))


@BOTH_LOOPS
def test_agents_that_nobody_announced(options: Any) -> None:
    class Strange(Comings):
        def step(self, actions: Any) -> Any:
            result = super().step(actions)
            self.agents.append("green_7")
            return result

    assert "['green_7'] are not among possible_agents" in str(raised(Strange, **options))


@BOTH_LOOPS
def test_a_trajectory_in_which_nobody_acts(options: Any) -> None:
    class Empty(Comings):
        def reset(self, seed: Any = None, options: Any = None) -> Any:
            super().reset(seed)
            self.agents = []
            return {}, {}

    class EmptyTurns(Turns):
        def reset(self, seed: Any = None, options: Any = None) -> None:
            super().reset(seed)
            self.agents = []

    for env in (Empty, EmptyTurns):
        error = raised(env, **options)
        assert "no agent acted in the whole trajectory" in str(error), str(error)


@BOTH_LOOPS
def test_an_observation_is_needed_of_all_that_begin(options: Any) -> None:
    class Blind(Comings):
        def reset(self, seed: Any = None, options: Any = None) -> Any:
            observations, infos = super().reset(seed)
            del observations["red_1"]
            return observations, infos

    assert "there is no observation of agent 'red_1', which is to act" in str(raised(Blind, **options))


@BOTH_LOOPS
@pytest.mark.parametrize(
    ("action", "words"),
    [
        (7, "action 7 of agent 'red_0' is outside Discrete"),
        (np.zeros(3), "agent 'red_0': action has the shape"),
        ("up", "agent 'red_0': action"),
    ],
)
def test_actions(action: Any, words: str, options: Any) -> None:
    class Wrong(Chooser):
        def get_action(self, observation: Any) -> Any:
            return (action if observation[1] == 1 else 0), {}

    class Strict(Comings):
        def step(self, actions: Any) -> Any:
            assert all(0 <= each < 4 for each in actions.values())
            return super().step(actions)

    error = raised(Strict, Wrong(), **options)
    assert words in str(error), str(error)
    assert "choosing an action" in str(error)
    if words.startswith("action 7"):  # where the environment takes it, the recorder does not
        error = raised(Comings, Wrong(), **options)
        assert "agent 'red_0': action is outside its space: " in str(error)


@BOTH_LOOPS
@pytest.mark.parametrize("given", [3, (1, 2, 3), None])
def test_what_get_action_returns(given: Any, options: Any) -> None:
    class Wrong(Chooser):
        def get_action(self, observation: Any) -> Any:
            return given

    assert "get_action must return (action, agent_info)" in str(raised(Comings, Wrong(), **options))


def test_what_get_actions_returns() -> None:
    class Wrong:
        def get_action(self, observation: Any) -> Any:
            return 0, {}

        def get_actions(self, observations: Any) -> Any:
            return [0] * len(observations)

    assert "get_actions must return a tuple (actions, agent_infos)" in str(raised(Comings, Wrong()))


@BOTH_LOOPS
def test_who_acted_when_a_policy_raises(options: Any) -> None:
    class Tired(Chooser):
        def get_action(self, observation: Any) -> Any:
            if observation[0] == 3 and observation[1] == 2:
                raise ValueError("tired")
            return super().get_action(observation)

    error = raised(Comings, {"red": Chooser(), "blue": Tired()}, **options)
    assert "choosing an action in trajectory 0" in str(error)
    assert "tired" in str(error)
    assert any("'blue_1'" in note for note in getattr(error.__cause__, "__notes__", []))


def test_environments_that_name_no_agents() -> None:
    class Nameless(Comings):
        possible_agents = ()

    class Numbered(Comings):
        possible_agents = (1, 2)

    class Spaceless(Comings):
        def action_space(self, agent: str) -> Any:
            return None

    for env in (Nameless, Numbered):
        assert "possible_agents must be different strings, at least one" in str(raised(env))
    assert "action_space('red_0') must be a space of Gymnasium, and is None" in str(raised(Spaceless))


class Blind:
    """Does not look."""

    def get_action(self, observation: Any) -> Any:
        return 0, {}


def test_an_observation_that_is_outside_its_space_is_an_anomaly() -> None:
    game = changed("observations", lambda part: {**part, "red_1": np.full(3, np.nan, np.float32)}, at=4)
    with LocalSampler({"red": Blind(), "blue": Blind()}, game, seed=1) as sampler:
        sampler.obtain_trajectories(2)
        first = sampler.stats.first_anomaly
        assert sampler.stats.anomalies == 8  # from step 4 to 7, of two trajectories
        assert first is not None
        assert "agent 'red_1': observation holds nan" in first.what
    assert "agent 'red_1': observation holds nan" in str(raised(game, Blind(), check="error"))


# --- What does not go together


@pytest.mark.parametrize(
    ("agents", "options", "words"),
    [
        ({"x": Chooser()}, {"worker_class": VecWorker}, "VecWorker does not run"),
        ({"x": Chooser()}, {"inference": "parent"}, 'inference="parent" takes one agent'),
        (Chooser(), {"inference": "parent", "policy_of": {"red_0": "shared"}}, 'inference="parent" takes one agent'),
        ({"x": Chooser()}, {"staleness": 1}, "staleness=1"),
    ],
)
def test_what_samplers_refuse(agents: Any, options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        MultiprocessingSampler(agents, Comings, n_workers=1, **options)


@pytest.mark.parametrize(
    "options", [{"worker_class": VecWorker}, {"inference": "parent"}, {"worker_class": VecWorker, "staleness": 1}]
)
def test_what_workers_refuse(options: Any) -> None:
    words = r"of several agents.*wrap it in a gymnasium\.Env in which one agent"
    with MultiprocessingSampler(Chooser(), Comings, n_workers=1, **options) as sampler:  # noqa: SIM117
        with pytest.raises(RolloutError, match=words):
            sampler.obtain_trajectories(2)


def test_one_version_behind_is_refused() -> None:
    with LocalSampler(Chooser(), Comings, n_workers=1, staleness=1) as sampler:  # noqa: SIM117
        with pytest.raises(RolloutError, match="staleness=1 cannot be had of environments of several agents yet"):
            sampler.obtain_trajectories(2)


def test_fragments_are_refused() -> None:
    with LocalSampler({"x": Chooser()}, Comings) as sampler:  # noqa: SIM117
        with pytest.raises(UsageError, match="fragments cannot be had of environments of several agents yet"):
            sampler.obtain_fragments(10, 2)
    with LocalSampler(Chooser(), Comings) as sampler:
        with pytest.raises(RolloutError, match="fragments cannot be had of environments of several agents yet"):
            sampler.obtain_fragments(10, 2)
        assert sampler.obtain_trajectories(1).n_env_steps == 7


def test_managers_refuse_them() -> None:
    for make in (lambda: SerialEnvManager(Comings, n_envs=2), lambda: EnvManager(Comings, n_envs=2, n_workers=1)):
        with pytest.raises(streamsampler.SamplerError, match="of several agents"), make() as manager:
            manager.reset()


# --- Hooks, drops, abandoning


class Noting:
    """Puts what it sees into metrics."""

    def on_trajectory_start(self, context: Any) -> None:
        context.memory["seen"] = [sorted(context.observation)]

    def on_timestep(self, context: Any) -> None:
        context.memory["seen"].append(sorted(context.observation))
        assert set(context.action) <= set(IDS)
        assert context.reward == context.rewards[-1]
        assert len(context.rewards) == context.timestep
        assert set(context.observations) >= set(context.action)

    def on_trajectory_end(self, context: Any) -> None:
        assert context.env.possible_agents == IDS
        context.metrics["n_agents"] = max(map(len, context.memory["seen"]))
        context.metrics["length"] = len(context.actions["red_1"])


@pytest.mark.parametrize("game", [Comings, Turns])
def test_hooks_see_dicts_by_agent(game: Any) -> None:
    with LocalSampler(Chooser(), game, seed=1, hooks=Noting()) as sampler:
        batch = sampler.obtain_trajectories(3)
    expected = 4 if game is Comings else 1
    assert batch.episodes.infos["n_agents"].tolist() == [expected] * 3
    assert batch.stats.metrics["n_agents"] == expected
    lengths = [one.n_timesteps for one in batch["shared"] if one.agent_ids[0] == "red_1"]
    assert batch.episodes.infos["length"].tolist() == lengths


def test_a_metric_with_our_name() -> None:
    class Clashing:
        def on_trajectory_end(self, context: Any) -> None:
            context.metrics[OF_AGENTS] = 1

    assert OF_AGENTS in str(raised(Comings, hooks=Clashing()))


class Failing(Comings):
    """Fails in some trajectories, in the middle."""

    def step(self, actions: Any) -> Any:
        if self.t == 4 and self.rng.random() < 0.4:
            raise ValueError("no more")
        return super().step(actions)


@BOTH_LOOPS
@pytest.mark.parametrize("n_workers", [1, 3])
def test_trajectories_that_fail_are_left_out(n_workers: int, options: Any) -> None:
    options = {"seed": 4, "on_failure": "drop", "check": None, **options}
    with LocalSampler({"red": Chooser(), "blue": Chooser()}, Failing, n_workers=n_workers, **options) as sampler:
        batch = sampler.obtain_trajectories(8)
        assert sampler.stats.dropped_trajectories > 0
    assert batch.episodes.lengths.tolist() == [7] * 8
    assert len(batch["red"]) == len(batch["blue"]) == 16
    with LocalSampler({"red": Chooser(), "blue": Chooser()}, Failing, seed=4, check=None) as sampler:
        for seed, one in zip(batch.episodes.seeds, batch, strict=True):
            assert sampler.obtain_trajectories(seeds=[seed]).returns.tolist() == one.returns.tolist()


def test_abnormal_trajectories_are_left_out() -> None:
    class Odd(Comings):
        def step(self, actions: Any) -> Any:
            *parts, infos = super().step(actions)
            odd = self.t == 3 and self.total % 2 == 1
            return (*parts, {**infos, "red_1": {**infos.get("red_1", {}), "odd": True}} if odd else infos)

    def is_odd(infos: Any) -> bool:
        return any("odd" in info for info in infos.values())

    with LocalSampler(Chooser(), Odd, seed=4, drop_if=is_odd) as sampler:
        batch = sampler.obtain_trajectories(6)
        assert sampler.stats.dropped_trajectories > 0
    assert "odd" not in batch["shared"].env_infos


@pytest.mark.parametrize("at", [1, 3, 9, 13])
@pytest.mark.parametrize("game", [Comings, Turns])
@BOTH_LOOPS
def test_a_version_that_may_not_run_any_more(game: Any, at: int, options: Any) -> None:
    """The trajectory in hand is given up within a step, and leaves nothing in those to come."""
    board = new_board()

    class Ending(game):
        steps = 0

        def step(self, actions: Any) -> Any:
            type(self).steps += 1
            if type(self).steps == at:
                board.abandon_older(2)
            return super().step(actions)

    hooks = pickled_hooks(options.get("hooks"), None)
    workers = DefaultWorker(context_of(board, hooks=hooks)), DefaultWorker(context_of(hooks=hooks))
    for worker, env in zip(workers, (Ending(), game()), strict=True):
        worker.update_env(ExistingEnvUpdate(env))
        worker.update_agent(Chooser())
    outcome = workers[0].rollout(Ticket(1, range(3)), [1, 2, 3])
    assert outcome.rollouts is None
    assert outcome.n_timesteps + outcome.abandoned_timesteps == at == workers[0].ran_timesteps
    again, fresh = (worker.rollout(Ticket(2, range(2)), [4, 5]).rollouts for worker in workers)
    assert again is not None
    assert fresh is not None
    assert [each.rollouts.rewards.tolist() for each in again.policies] == [
        each.rollouts.rewards.tolist() for each in fresh.policies
    ]
    assert again.lengths.tolist() == fresh.lengths.tolist()


def test_a_subclass_of_the_worker_that_changes_steps() -> None:
    class Doubled(streamsampler.DefaultWorker):
        def after_step(self, context: Any, result: Any) -> Any:
            observations, rewards, *rest = result
            return observations, {agent: 2 * reward for agent, reward in rewards.items()}, *rest

    for game in (Comings, Turns):
        with LocalSampler(Chooser(), game, seed=1) as sampler:
            batch = sampler.obtain_trajectories(3)
        with LocalSampler(Chooser(), game, seed=1, worker_class=Doubled) as sampler:
            doubled = sampler.obtain_trajectories(3)
        assert (doubled.returns == 2 * batch.returns).all()
        assert (doubled["shared"].rewards == 2 * batch["shared"].rewards).all()
        assert doubled["shared"].observations.tolist() == batch["shared"].observations.tolist()


def test_spaces_of_other_kinds() -> None:
    """Dicts, tuples, pixels and texts, of which each agent has its own."""
    of_agents = {
        "red_0": (spaces.Dict({"a": spaces.Box(0, 9, (2,)), "b": spaces.Discrete(3)}), spaces.Box(-1, 1, (2,))),
        "red_1": (spaces.Tuple([spaces.Box(0, 1, (40, 40, 3)), spaces.MultiBinary(4)]), spaces.MultiDiscrete([3, 4])),
        "blue_0": (spaces.Text(5), spaces.Dict({"x": spaces.Discrete(2), "y": spaces.Box(0, 1, (1,))})),
        "blue_1": (spaces.Box(0, 255, (30, 50, 3), np.uint8), spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)])),
    }

    class Kinds(Comings):
        def __init__(self) -> None:
            super().__init__({agent: Stay(0, 4 + number) for number, agent in enumerate(IDS)}, infos=False)

        def observation_space(self, agent: str) -> Any:
            return of_agents[agent][0]

        def action_space(self, agent: str) -> Any:
            return of_agents[agent][1]

        def seen(self, agent: str) -> Any:
            space = of_agents[agent][0]
            space.seed(int(self.rng.integers(2**31)))
            return space.sample()

        def step(self, actions: Any) -> Any:
            assert all(of_agents[agent][1].contains(action) for agent, action in actions.items())
            return super().step(dict.fromkeys(actions, 0))

    policies = dict.fromkeys(IDS, "random")
    for options in ({}, {"hooks": Silent()}):
        with LocalSampler(policies, Kinds, seed=1, **options) as sampler:
            batch = sampler.obtain_trajectories(4)
        with MultiprocessingSampler(policies, Kinds, seed=1, n_workers=2, **options) as sampler:
            assert sampler.obtain_trajectories(4) == batch
    assert batch["blue_0"].observations.dtype == object
    assert batch["blue_1"].observations.shape == (7 * 4, 30, 50, 3)
    assert batch["red_1"].last_observations[0].shape == (4, 40, 40, 3)
    assert streamsampler.TrajectoryBatch.concatenate(batch.split()) == batch


# --- Found in a review


@BOTH_LOOPS
@pytest.mark.parametrize("agent", [Chooser(), "random"], ids=["one by one", "together"])
def test_infos_that_end_are_not_recorded_again(agent: Any, options: Any) -> None:
    class Once(Comings):
        def step(self, actions: Any) -> Any:
            *rest, _ = super().step(actions)
            return *rest, ({agent: {"first": self.t} for agent in actions} if self.t == 1 else {})

    with LocalSampler(agent, Once, seed=1, **options) as sampler:
        batch = sampler.obtain_trajectories(1)
    shared = batch["shared"]
    assert shared.env_infos["first"][shared.env_infos["_first"]].tolist() == [1] * 3
    assert all("first" not in infos for infos in batch.episodes.last_infos.values())


@BOTH_LOOPS
def test_infos_of_nobody_are_kept_where_there_are_as_many_as_agents(options: Any) -> None:
    class Common(Comings):
        def step(self, actions: Any) -> Any:
            *rest, infos = super().step(actions)
            (gone, *_), t = actions, self.t
            return *rest, {agent: info for agent, info in infos.items() if agent != gone} | {"common": t}

    with LocalSampler(Chooser(), Common, seed=1, **options) as sampler:
        batch = sampler.obtain_trajectories(1)
    assert batch.env_infos["common"].tolist() == list(range(1, batch.n_env_steps + 1))


@BOTH_LOOPS
def test_observations_that_are_no_dict(options: Any) -> None:
    error = raised(changed("observations", lambda _: None, at=1), **options)
    assert "observations must be a dict by agent, and are None" in str(error)
    assert "get_action" not in str(error)


@BOTH_LOOPS
def test_a_policy_without_an_info(options: Any) -> None:
    assert "agent" in str(raised(Comings, lambda observation: (1, None), **options))


@pytest.mark.parametrize(
    ("actions", "infos", "text"),
    [
        (lambda n: np.zeros(n + 1, np.int64), {}, "get_actions must return an action for each of 3 observations"),
        (lambda n: np.zeros(n - 1, np.int64), {}, "get_actions must return an action for each of 3 observations"),
        (lambda n: 0, {}, "get_actions must return an action for each of 3 observations, and returned 0"),
        (lambda n: np.zeros(n, np.int64), {"v": np.zeros(2)}, "'v'"),
        (lambda n: np.zeros(n, np.int64), {"v": {"w": 1.0}}, "'w'"),
    ],
)
def test_batches_of_actions_of_another_length(actions: Any, infos: Any, text: str) -> None:
    class Wrong(Chooser):
        reset = None  # type: ignore[assignment]

        def get_actions(self, observations: Any) -> Any:
            return actions(len(observations)), infos

    assert text in str(raised(Comings, Wrong()))


def test_another_order_of_agents_in_another_worker() -> None:
    class Reversed(Comings):
        possible_agents = IDS[::-1]

    envs = streamsampler.PerWorker([Comings, Reversed])
    with (
        MultiprocessingSampler(Chooser(), envs, seed=1, n_workers=2, check=None) as sampler,
        pytest.raises(streamsampler.DataError, match="possible_agents must have the same order everywhere"),
    ):
        sampler.obtain_exact_trajectories(2)


class AllAtOnce(Turns):
    """Ends for all agents at once, without their last turns."""

    said = True

    def step(self, action: Any) -> None:
        super().step(action)
        if self.t == 2:
            self.truncations = dict.fromkeys(self.truncations, self.said)
            self.agents = []


class SaysNothing(AllAtOnce):
    said = False


def test_agents_that_have_no_last_turn() -> None:
    with LocalSampler(Chooser(), AllAtOnce, seed=1) as sampler:
        batch = sampler.obtain_trajectories(2)
    assert batch["shared"].truncated.all()
    assert not batch["shared"].terminated.any()
    assert batch.truncated.all()
    assert "is gone, and was neither terminated nor truncated" in str(raised(SaysNothing))


def test_turns_that_are_not_whole() -> None:
    class Short(Turns):
        def last(self) -> Any:
            return super().last()[:4]

    assert "last() must return (observation, reward, terminated, truncated, info)" in str(raised(Short))
