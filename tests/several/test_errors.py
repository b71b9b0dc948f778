"""C5 for several agents: what is wrong ends the call, with one error that says what, where and what to do."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from streamsampler import (
    DataError,
    DefaultWorker,
    EnvManager,
    ExistingEnvUpdate,
    MultiprocessingSampler,
    PerWorker,
    RolloutError,
    SerialEnvManager,
    UsageError,
)
from streamsampler.data.agent_rows import OF_AGENTS
from streamsampler.filters import RunningNorm, RunningReturnNorm
from streamsampler.protocol.messages import Ticket
from streamsampler.workers.hooks import pickled_hooks
from tests.scripted.games import IDS, Chooser, Comings, Stay, Turns
from tests.several.comparing import ALL_LOOPS, PARENT, LocalSampler, sampled
from tests.tiers import mostly_slow
from tests.workers.contexts import context_of, new_board

X = {"x": Chooser()}


def raised(env: Any, agent: Any = None, n: int = 2, **options: Any) -> RolloutError:
    with pytest.raises(RolloutError) as error:
        sampled(agent or Chooser(), env, n, **{"check": None, **options})
    return error.value


def stepping(change: Callable[..., Any], at: int = 2, base: Any = Comings) -> Any:
    """Return the game, with what a step returns changed from some step on."""

    class Changed(base):
        def step(self, actions: Any) -> Any:
            result = super().step(actions)
            return change(self, *result) if self.t >= at else result

    return Changed


def with_part(position: int, value: Any, at: int = 2, **of_agents: Any) -> Any:
    """Return the game with one part of what steps return replaced, or left out and changed for some agents."""

    def change(game: Any, *result: Any) -> Any:
        parts = list(result)
        changed = {k: v for k, v in {**parts[position], **of_agents}.items() if v is not None}
        parts[position] = changed if of_agents else value
        return tuple(parts)

    return stepping(change, at)


def beginning(change: Callable[..., Any], base: Any = Comings) -> Any:
    """Return a game that is changed after its reset."""

    class Changed(base):
        def reset(self, seed: Any = None, options: Any = None) -> Any:
            return change(self, super().reset(seed))

    return Changed


def emptied(game: Any, result: Any) -> Any:
    game.agents = []
    return result and ({}, {})


def blinded(game: Any, result: Any) -> Any:
    del result[0]["red_1"]
    return result


def vanishing(game: Any, *result: Any) -> Any:
    if "red_1" in game.agents:
        game.agents.remove("red_1")
    return result


def stranger(game: Any, *result: Any) -> Any:
    game.agents.append("green_7")
    return result


class Forgetful(Comings):
    """Lists agents that have ended, and reads their actions."""

    def step(self, actions: Any) -> Any:
        acted = self.agents
        result = super().step(actions)
        self.agents = acted
        return result


class Aliased(Comings):
    """Has a single list for the agents that there are and for those that there may be."""

    def __init__(self) -> None:
        super().__init__({agent: Stay(0, 3 + number) for number, agent in enumerate(IDS)})
        self.possible_agents = list(IDS)  # type: ignore[assignment]

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        result = super().reset(seed)
        self.agents = self.possible_agents  # type: ignore[assignment]
        return result

    def step(self, actions: Any) -> Any:
        shared = self.agents
        result = super().step(actions)
        shared[:] = self.agents
        self.agents = shared
        return result


class SaysNothing(Turns):
    """Ends for all agents at once, without saying so."""

    def step(self, action: Any) -> None:
        super().step(action)
        self.agents = self.agents if self.t < 2 else []


class ShortTurns(Turns):
    def last(self) -> Any:
        return super().last()[:4]


class Acting(Chooser):
    """Takes the action that it is told, in the second timestep of an agent, or returns what a function does."""

    def __init__(self, action: Any) -> None:
        super().__init__()
        self.action = action

    def get_action(self, observation: Any) -> Any:
        if callable(self.action):
            return self.action(observation)
        return (self.action if observation[1] == 1 else 0), {}


class Batches(Acting):
    """Returns what it is told for all."""

    reset = None  # type: ignore[assignment]

    def get_actions(self, observations: Any) -> Any:
        return self.action(len(observations))


def tired(observation: Any) -> Any:
    if observation[0] == 3 and observation[1] == 2:
        raise ValueError("tired")
    return 0, {}


class Clashing:
    def on_trajectory_end(self, context: Any) -> None:
        context.metrics[OF_AGENTS] = 1


def with_class(**attributes: Any) -> Any:
    return type("Odd", (Comings,), attributes)


ONE_LENGTH = "get_actions must return an action for each of 3 observations"
NOBODY = "no agent acted in the whole trajectory"


@pytest.mark.parametrize(
    ("env", "agent", "words"),
    [
        (with_part(0, 0, red_1=None), None, "the acting agent 'red_1' has no observation"),
        (with_part(0, 0, red_1=np.zeros(7)), None, "agent 'red_1': .*observation has the shape"),
        (with_part(0, 3), None, "observations must be a dict by agent, got 3"),
        (with_part(0, None, at=1), None, "observations must be a dict by agent, got None"),
        (with_part(0, 0, at=3, red_0=None), None, "agent 'red_0', which has ended, has no last observation"),
        (with_part(1, 0, red_0=None), None, "gave no reward, terminated or truncated of agent 'red_0', which acted"),
        (with_part(1, 0, red_0="much"), None, "agent 'red_0': the reward should be a number"),
        (with_part(1, 1.0), None, "dict"),
        (with_part(2, 0, red_1="maybe"), None, "terminated of 'red_1' should be True or False"),
        (with_part(3, 0, red_1=None), None, "gave no reward, terminated or truncated of agent 'red_1'"),
        *((with_part(at, value), None, "dicts? by agent") for at in (2, 3) for value in (True, False, None)),
        (stepping(lambda game, *result: (*result[:2], True, False, result[4])), None, "dicts? by agent"),
        (stepping(lambda game, *result: (*result[:2], False, False, result[4])), None, "dicts? by agent"),
        (with_part(4, 0, red_1=[1]), None, "the info of agent 'red_1' must be a dict"),
        (with_part(4, 1), None, "dict"),
        (stepping(lambda game, *result: result[:4]), None, r"step must return \(observation"),
        (stepping(vanishing), None, "the agent 'red_1' is gone, and was neither terminated nor truncated"),
        (stepping(stranger), None, r"\['green_7'\] are not among possible_agents"),
        (beginning(emptied), None, NOBODY),
        (beginning(emptied, Turns), None, NOBODY),
        (beginning(blinded), None, "the acting agent 'red_1' has no observation"),
        (Forgetful, None, "KeyError: 'red_0'\n.agent 'red_0' has no action in this step, because it has ended"),
        (SaysNothing, None, "is gone, and was neither terminated nor truncated"),
        (ShortTurns, None, r"last\(\) must return \(observation, reward, terminated, truncated, info\)"),
        (with_class(possible_agents=()), None, "possible_agents must be different strings, at least one"),
        (with_class(possible_agents=(1, 2)), None, "possible_agents must be different strings, at least one"),
        (with_class(action_space=lambda *_: None), None, r"action_space\('red_0'\) must be a space of Gymnasium.*None"),
        (Comings, Acting(7), "agent 'red_0': action is outside its space: "),
        (
            stepping(lambda game, *result: result[8]),
            Acting(7),
            "choosing an action.*action 7 of agent 'red_0' is outside Discrete",
        ),
        (Comings, Acting(np.zeros(3)), "choosing an action.*agent 'red_0': action has the shape"),
        (Comings, Acting("up"), "choosing an action.*agent 'red_0': action"),
        *((Comings, Acting(lambda _, it=it: it), r"get_action of policy 'shared' must return \(action, agent_info\)")
          for it in (3, (1, 2, 3), None)),
        (Comings, Acting(lambda _: (1, None)), "agent"),
        (Comings, {"red": Chooser(), "blue": Acting(tired)}, "choosing an action in trajectory 0(.|\n)*tired"),
        (Comings, Batches(lambda n: [0] * n), r"get_actions must return a tuple \(actions, agent_infos\)"),
        (Comings, Batches(lambda n: (np.zeros(n + 1, np.int64), {})), ONE_LENGTH),
        (Comings, Batches(lambda n: (np.zeros(n - 1, np.int64), {})), ONE_LENGTH),
        (Comings, Batches(lambda n: (0, {})), f"{ONE_LENGTH}, got 0"),
        (Comings, Batches(lambda n: (np.zeros(n, np.int64), {"v": np.zeros(2)})), "'v'"),
        (Comings, Batches(lambda n: (np.zeros(n, np.int64), {"v": {"w": 1.0}})), "'w'"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ways", [ALL_LOOPS, pytest.param([PARENT], marks=pytest.mark.slow)])
def test_what_environments_and_agents_return(env: Any, agent: Any, words: str, ways: Any) -> None:
    for options in ways:
        error = raised(env, agent, **options)
        assert re.search(words, str(error), re.DOTALL), str(error)
        assert error.trajectory in (None, 0)
        if "tired" in words:
            assert any("'blue_1'" in note for note in getattr(error.__cause__, "__notes__", []))


def test_the_trajectory_is_named_also_where_an_agent_took_no_part_in_those_before() -> None:
    n_begun = iter(range(9))

    class Late(Comings):
        def begin(self, seed: Any) -> None:
            super().begin(seed)
            if next(n_begun) == 0:
                self.agents.remove("blue_1")

    def change(game: Any, observations: Any, rewards: Any, *rest: Any) -> Any:
        return observations, {**rewards, "blue_1": "much"} if "blue_1" in rewards else rewards, *rest

    error = raised(ExistingEnvUpdate(stepping(change, 1, Late)()))
    assert "agent 'blue_1': the reward should be a number" in str(error)
    assert error.trajectory == 1


@pytest.mark.parametrize(
    "options", mostly_slow([*ALL_LOOPS[:2], {**PARENT, "n_workers": 1, "worker_args": {"n_envs": 1}}], 2)
)
def test_possible_agents_that_lose_an_agent(caplog: Any, options: Any) -> None:
    assert re.search(f"{NOBODY}.*possible_agents has lost 'red_0' since", str(raised(Aliased, **options)))
    assert not caplog.messages
    lengths = sampled(Chooser(), Aliased, check=None, max_episode_length=4, **options)["shared"].lengths
    assert lengths.tolist() == [3, 4, 4, 4, 4, 4, 4, 4]  # red_0 is absent in the second episode, red_1 in the third
    (text,) = caplog.messages
    assert "possible_agents has lost 'red_0' since the environment was made: let reset copy the list" in text


class Blind:
    """Does not look."""

    def get_action(self, observation: Any) -> Any:
        return 0, {}


def test_an_observation_that_is_outside_its_space_is_an_anomaly() -> None:
    game = with_part(0, 0, at=4, red_1=np.full(3, np.nan, np.float32))
    with LocalSampler({"red": Blind(), "blue": Blind()}, game, seed=1) as sampler:
        sampler.obtain_trajectories(2)
        assert sampler.stats.anomalies == 8  # from step 4 to 7, of two trajectories
        assert "agent 'red_1': observation holds nan" in sampler.stats.first_anomaly.what
    assert "agent 'red_1': observation holds nan" in str(raised(game, Blind(), check="error"))


def test_another_order_of_agents_in_another_worker() -> None:
    envs = PerWorker([Comings, with_class(possible_agents=IDS[::-1])])
    with (
        LocalSampler(Chooser(), envs, seed=1, n_workers=2, check=None) as sampler,
        pytest.raises(DataError, match="possible_agents must have the same order in all workers"),
    ):
        sampler.obtain_exact_trajectories(2)


# --- What does not go together


@pytest.mark.parametrize(
    ("agents", "options", "words"),
    [
        ({}, {}, "at least one agent"),
        ({1: Chooser()}, {}, "with strings as names"),
        ({"x": 3}, {}, "an agent is"),
        (X, {"policy_of": {"red_0": "y"}}, "names the policy 'y' for agent 'red_0', but the policies are 'x'"),
        (X, {"policy_of": 3}, "policy_of is a function"),
        (X, {"policy_of": lambda agent: "x"}, r"policy_of takes \(agent\), and is called with two arguments"),
        (X, {"observation_filter": RunningNorm()}, "observation_filter must be a dict by policy name"),
        (X, {"reward_filter": {"y": RunningReturnNorm()}}, "reward_filter has unknown policies 'y'"),
        (Chooser(), {"observation_filter": {"y": RunningNorm()}}, "has unknown policies 'y': agents has none"),
        (X, {"observation_filter": {"x": 3}}, r"observation_filter\['x'\], a int, has no apply"),
    ],
)
def test_what_samplers_refuse_at_once(agents: Any, options: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        MultiprocessingSampler(agents, Comings, n_workers=1, **options)


def test_their_vector_environments_are_refused() -> None:
    for make in (lambda: SerialEnvManager(Comings, n_envs=2), lambda: EnvManager(Comings, n_envs=2, n_workers=1)):
        words = r"these have several: step them with.*wrap it in a gymnasium\.Env in which one agent"
        with make() as manager, pytest.raises(UsageError, match=words):
            manager.vector_env()


@pytest.mark.parametrize(
    ("agents", "policy_of", "words"),
    [
        ({"x": Chooser(), "y": Chooser()}, None, "no policy plays agent 'red_0'.*'x', 'y'.*policy_of="),
        (X, {"red_0": "x"}, "policy_of names no policy for agent 'red_1', only for 'red_0'"),
        (X, lambda agent, index: "z", r"policy_of\('red_0', 0\) names the policy 'z'.*the policies are 'x'"),
        (X, lambda agent, index: None, "names the policy None"),
    ],
)
def test_an_agent_that_nobody_plays(agents: Any, policy_of: Any, words: str) -> None:
    assert re.search(words, str(raised(Comings, agents, policy_of=policy_of)))


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


@pytest.mark.parametrize(("game", "most"), [(Comings, 4), (Turns, 1)])
def test_hooks_see_dicts_by_agent(game: Any, most: int) -> None:
    batch = sampled(Chooser(), game, hooks=Noting())
    assert batch.episodes.infos["n_agents"].tolist() == [most] * 3
    assert batch.stats.metrics["n_agents"] == most
    lengths = [one.n_timesteps for one in batch["shared"] if one.agent_ids[0] == "red_1"]
    assert batch.episodes.infos["length"].tolist() == lengths
    assert OF_AGENTS in str(raised(game, hooks=Clashing()))


class Failing(Comings):
    """Fails in some trajectories, in the middle; says of others that they are odd."""

    def step(self, actions: Any) -> Any:
        if self.t == 4 and self.rng.random() < 0.4:
            raise ValueError("no more")
        *parts, infos = super().step(actions)
        odd = self.t == 3 and self.total % 4 == 1
        return (*parts, {**infos, "red_1": {**infos.get("red_1", {}), "odd": True}} if odd else infos)


def is_odd(infos: Any) -> bool:
    return any("odd" in info for info in infos.values())


@pytest.mark.parametrize("options", ALL_LOOPS[:2])
def test_trajectories_that_fail_or_are_abnormal_are_left_out(options: Any) -> None:
    how = {"seed": 4, "on_failure": "drop", "drop_if": is_odd, "check": None, **options}
    with LocalSampler(Chooser(), Failing, **how) as sampler:
        batch = sampler.obtain_trajectories(8)
        assert {"no more" in one.error for one in sampler.stats.dropped} == {True, False}  # for both reasons
    assert batch.episodes.lengths.tolist() == [7] * 8
    assert "odd" not in batch["shared"].env_infos
    with LocalSampler(Chooser(), Failing, seed=4, check=None) as sampler:
        for seed, one in zip(batch.episodes.seeds, batch, strict=True):
            assert sampler.obtain_trajectories(seeds=[seed]).returns.tolist() == one.returns.tolist()


@pytest.mark.parametrize("at", [1, 3, 9, 13])
@pytest.mark.parametrize("game", [Comings, Turns])
@pytest.mark.parametrize("options", ALL_LOOPS)
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
    assert [each.rollouts.rewards.tolist() for each in again.policies] == [
        each.rollouts.rewards.tolist() for each in fresh.policies
    ]
    assert again.lengths.tolist() == fresh.lengths.tolist()


def test_each_trajectory_of_a_ticket_is_cut_at_the_limit() -> None:
    worker = DefaultWorker(context_of(max_episode_length=2))
    worker.update_env(ExistingEnvUpdate(Comings()))
    worker.update_agent(Chooser())
    rollouts: Any = worker.rollout(Ticket(1, range(3)), [1, 2, 3]).rollouts
    assert (rollouts.lengths.tolist(), rollouts.truncated.tolist()) == ([2, 2, 2], [True, True, True])


class Doubled(DefaultWorker):
    def after_step(self, context: Any, result: Any) -> Any:
        observations, rewards, *rest = result
        return observations, {agent: 2 * reward for agent, reward in rewards.items()}, *rest


@pytest.mark.parametrize("game", [Comings, Turns])
def test_a_subclass_of_the_worker_that_changes_steps(game: Any) -> None:
    batch, doubled = sampled(Chooser(), game), sampled(Chooser(), game, worker_class=Doubled)
    assert (doubled.returns == 2 * batch.returns).all()
    assert (doubled["shared"].rewards == 2 * batch["shared"].rewards).all()
    assert doubled["shared"].observations.tolist() == batch["shared"].observations.tolist()


class Reordered(Comings):
    """After an error the environment in its place has its agents in another order."""

    n_made = 0

    def __init__(self) -> None:
        super().__init__()
        Reordered.n_made += 1
        self.is_first = Reordered.n_made == 1
        if not self.is_first:
            self.possible_agents = self.possible_agents[::-1]

    def begin(self, seed: Any) -> None:
        super().begin(seed)
        self.n_begun = vars(self).get("n_begun", 0) + 1

    def step(self, actions: Any) -> Any:
        if self.is_first and self.n_begun == 3:
            raise ValueError("broken")
        return super().step(actions)


def test_an_environment_with_other_agents_does_not_take_the_place_of_one_that_raised() -> None:
    """Batches would have the trajectories of one agent under the name of another."""
    Reordered.n_made = 0
    with (
        LocalSampler(Chooser(), Reordered, seed=1, check=None, on_failure="drop", max_restarts=9) as sampler,
        pytest.raises(RolloutError, match=r"making the environment .*the same agents, in the same order"),
    ):
        sampler.obtain_trajectories(5)
