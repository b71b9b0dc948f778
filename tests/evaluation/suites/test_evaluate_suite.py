"""A suite gives each task the trajectories that an evaluation of the task alone has."""

import functools
import re
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import PerWorker, evaluate
from streamsampler.errors import SamplerError, StorageError, UsageError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.suites.suite_evaluation import SuiteEvaluation
from streamsampler.workers.vec.worker import VecWorker
from tests.evaluation.envs import Better, Known, zero
from tests.scripted.games import Comings

SUITE: dict[str, Any] = {
    "push": Known,
    "arm/lift": functools.partial(Known, success="success"),
    "arm/reach": "CartPole-v1",
}


def alone(name: str, agent: Any = zero, suite: Any = SUITE, **options: Any) -> Evaluation:
    return evaluate(agent, suite[name], **options)


@pytest.mark.parametrize("n_workers", [0, 1, 2, 5])
def test_each_task_equals_its_own_evaluation(n_workers):
    numbers = {"push": 12, "arm/lift": 5, "arm/reach": 7}
    suite = evaluate(zero, SUITE, n_trajectories=numbers, seed=3, n_workers=n_workers)
    assert list(suite) == list(SUITE)
    for name in SUITE:
        own = alone(name, n_trajectories=numbers[name], seed=3, n_workers=0)
        assert suite[name] == own
        assert suite[name].to_json() == own.to_json()


def test_seeds_and_scenarios_hold_for_each_task():
    seeds = [5, 8, 2**40]
    suite = evaluate(zero, SUITE, seeds=iter(seeds), n_workers=0)
    assert all(each.seeds == tuple(seeds) for each in suite.evaluations)
    scenarios: list[dict[str, Any]] = [{"seed": 4, "options": {"level": 100}, "name": "high"}, {"seed": 8}]
    tasks = {"push": Known, "lift": Known}
    suite = evaluate(zero, tasks, scenarios=scenarios, n_workers=2)
    assert suite["push"] == suite["lift"] == evaluate(zero, Known, scenarios=scenarios, n_workers=0)
    assert suite["lift"]["high"].seed == 4


def test_trajectories_that_are_left_out_are_replaced_as_in_the_task_alone():
    seeds = evaluate(zero, Known, n_trajectories=6, seed=1, n_workers=0).seeds
    suite: dict[str, Any] = {"good": Known, "bad": functools.partial(Known, fails=(seeds[1], seeds[4]))}
    found = evaluate(zero, suite, n_trajectories=5, seed=1, n_workers=2, on_failure="drop")
    for name, env in suite.items():
        assert found[name] == evaluate(zero, env, n_trajectories=5, seed=1, n_workers=0, on_failure="drop")
    assert (found["bad"].left_out, found["bad"].indices.tolist()) == (2, [0, 2, 3, 5, 6])


def test_a_suite_without_seed_draws_one_for_all_tasks():
    suite = evaluate(zero, {"one": Known, "other": Known}, n_trajectories=4, n_workers=0)
    assert suite["one"] == suite["other"]


@pytest.mark.parametrize(("are_given", "n_workers"), [(False, 2), (True, 0)])
def test_a_failed_task_is_named_and_does_not_lose_the_others(are_given, n_workers):
    seeds = evaluate(zero, Known, n_trajectories=3, seed=1, n_workers=0).seeds
    seed = seeds[2]
    suite = {"push": Known, "lift": functools.partial(Known, fails=(seed,)), "reach": Known}
    amount: dict[str, Any] = {"seeds": seeds} if are_given else {"n_trajectories": 3}
    found = evaluate(zero, suite, **amount, seed=1, n_workers=n_workers)
    assert (list(found), found.names, found.is_complete) == (["push", "reach"], ("push", "lift", "reach"), False)
    assert "trajectory 2" in found.failed["lift"]
    assert f"ValueError: seed {seed} fails" in found.failed["lift"]
    with pytest.raises(KeyError, match=r"'lift' has no evaluation, because it failed: .*seed"):
        found["lift"]
    assert "1 task of 3 failed" in str(found)
    assert SuiteEvaluation.from_json(found.to_json()) == found


def test_where_each_task_fails_the_first_error_is_raised():
    def broken(observation):
        raise ValueError("no action")

    with pytest.raises(SamplerError, match="no action") as caught:
        evaluate(broken, SUITE, n_trajectories=3, n_workers=0)
    assert any("'push'" in note and "3 tasks failed" in note for note in caught.value.__notes__)


# Agents


class Steps(gymnasium.Env[Any, Any]):
    """Has trajectories of one timestep, whose return is the action."""

    observation_space = spaces.Box(0, 1, (3,), np.float32)
    action_space = spaces.Discrete(9)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(3, np.float32), float(action), True, False, {}


class Always:
    def __init__(self, action: int) -> None:
        self.action = action

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        return self.action, {}


ACTIONS = {"one": 1, "two": 2}
TWO = dict.fromkeys(ACTIONS, Steps)


def always(task: str) -> Always:
    return Always(ACTIONS[task])


def of_name(key):
    return Always(ACTIONS[key])


@pytest.mark.parametrize(
    "agent", [always, of_name, lambda name: Always(ACTIONS[name]), {name: Always(it) for name, it in ACTIONS.items()}]
)
def test_each_task_has_its_agent(agent):
    found = evaluate(agent, TWO, n_trajectories=2, n_workers=0)
    assert {name: found[name].mean for name in found} == {"one": 1, "two": 2}


@pytest.mark.parametrize("agent", [Always(3), lambda observation: 3, lambda o: 3, lambda it: int(it.sum()) + 3])
def test_one_agent_acts_in_all_tasks(agent):
    found = evaluate(agent, TWO, n_trajectories=2, n_workers=0)
    assert found.mean == 3


def test_what_may_be_a_function_of_both_is_refused():
    with pytest.raises(UsageError, match="call its parameter task, or observation"):
        evaluate(lambda it: "random", TWO, n_trajectories=2, n_workers=0)
    found = evaluate(lambda task: "random", TWO, n_trajectories=2, n_workers=0)
    assert found["one"] == evaluate("random", Steps, n_trajectories=2, seed=found["one"].seed, n_workers=0)


class Chooses:
    """Returns the agent of a task; an object that is called."""

    def __call__(self, task):
        return always(task)


def test_a_callable_object_may_take_the_name_of_a_task():
    found = evaluate(Chooses(), TWO, n_trajectories=2, n_workers=0)
    assert {name: found[name].mean for name in found} == {"one": 1, "two": 2}


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (lambda task: {"one": Always(1)}[task], "name raised KeyError: 'two' for the task 'two'"),
        (lambda key: {"one": Always(1)}[key], "name raised KeyError: 'two' for the task 'two'"),
        (
            lambda key: {"three": Always(1)}[key],
            "raised KeyError: 'one' for the name of the task 'one', and TypeError: ",
        ),
        (lambda it: {}.get(it), "returned None for the name of the task 'one'; call its parameter task"),
        (lambda task: {"one": Always(1)}.get(task), "returned None for 'two', and no agent"),
        (lambda task: Always(1) if task == "one" else Path("nowhere.zip"), "task 'two': .*loaded: FileNotFoundError"),
        (lambda task: "random" if task == "one" else "nobody", "task 'two': no agent has the name 'nobody'"),
    ],
)
def test_errors_of_agents_name_the_task(agent, message):
    with pytest.raises(UsageError, match=message) as caught:
        evaluate(agent, TWO, n_trajectories=2, n_workers=0)
    if "raised" in message:
        assert isinstance(caught.value.__cause__, KeyError)


def test_a_dict_of_agents_has_the_names_of_the_tasks():
    with pytest.raises(UsageError, match="agent is a dict that lacks two and has three; its keys must be the names"):
        evaluate({"one": Always(1), "three": Always(3)}, TWO, n_trajectories=2)


def test_policies_of_several_agents_are_no_agents_of_tasks():
    suite = {"runner": Comings, "chaser": Comings}
    with pytest.raises(UsageError, match="could have policies as well"):
        evaluate({"runner": "random", "chaser": "random"}, suite, n_trajectories=2, return_of="all")


class OfSpaces(Better):
    """Was made for other spaces than `Known` has."""

    observation_space = Steps.observation_space
    action_space = Steps.action_space


def test_an_agent_that_fits_only_some_tasks_is_refused_before_workers_start():
    suite = {"one": Steps, "push": Known, "two": Steps, "lift": Known}
    with pytest.raises(UsageError, match=r"space of 'push' is .*, but the agent's is .*nor does it fit lift; it fits "):
        evaluate(OfSpaces(), suite, n_trajectories=2)
    assert evaluate(OfSpaces(), TWO, n_trajectories=2, n_workers=0).mean == 1


class OfPlayers(Always):
    """Was made for the spaces of each agent of a game."""

    action_space = Comings().action_space("runner")


def test_an_agent_fits_a_task_of_several_agents_if_it_fits_each_of_them():
    suite = {"one": Comings, "two": Comings}
    assert len(evaluate(OfPlayers(0), suite, n_trajectories=2, return_of="all", n_workers=0)["two"]) == 2
    with pytest.raises(UsageError, match=r"space of 'one', of '.*', is .*, but the agent's is .*nor does it fit two"):
        evaluate(OfSpaces(), suite, n_trajectories=2, return_of="all")


def test_a_model_that_predicts_is_deterministic_unless_it_is_not_to_be():
    assert evaluate(Better(), {"push": Steps}, n_trajectories=2, n_workers=0).mean == 1
    assert evaluate(Better(), {"push": Steps}, n_trajectories=2, n_workers=0, deterministic=False).mean == 0


# Wrong arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": {}}, "the suite is empty"),
        ({"env": {1: Known}}, "the names of tasks are strings, and 1 is of type int"),
        ({"env": {"a ": Known}}, "'a ' cannot name a task"),
        ({"env": {"a//b": Known}}, "cannot name a task"),
        ({"env": {"arm": Known, "arm/push": Known}}, "'arm' is a task, but 'arm/push' makes it a group"),
        ({"env": {"push": None}}, "'push' has no environment"),
        ({"env": {"push": [Known, Known]}}, "'push' has a list"),
        ({"env": {"push": PerWorker([Known])}}, "'push' has a PerWorker"),
        ({"env": {"push": "Nothing-v0"}}, "task 'push': .*Nothing"),
        ({"n_trajectories": {"push": 3}}, "n_trajectories lacks 'lift'"),
        ({"n_trajectories": {"push": 3, "lift": 3, "reach": 1}}, "n_trajectories has 'reach', which is no task"),
        ({"n_trajectories": {"push": 3, "lift": 0}}, "task 'lift': n_trajectories"),
        ({"n_trajectories": {"push": 0, "lift": 0}}, "task 'push': n_trajectories"),
        ({"bounds": {"push": (2, 1), "lift": (2, 1)}}, "task 'push': bounds"),
        ({"n_trajectories": 0}, "^n_trajectories"),
        ({"n_trajectories": None, "until_halfwidth": 1, "tasks": ["push"]}, "depends on all other tasks"),
        ({"n_trajectories": None}, "the number of trajectories is missing"),
        ({"normalise": {"push": (0, 1)}}, "normalise lacks 'lift'"),
        ({"normalise": {"push": (0, 1), "lift": (2, 2)}}, r"normalise\['lift'\] is \(2, 2\): .* are equal"),
        ({"normalise": {"push": (0, 1), "lift": (2, float("nan"))}}, r"normalise\['lift'\] must be two finite numbers"),
        ({"normalise": (0, 1)}, "normalise must be a dict"),
        ({"tasks": ["reach"]}, "tasks has 'reach', which is no task; the tasks are push, lift"),
        ({"tasks": []}, "tasks is empty"),
        ({"tasks": "push"}, "tasks must be a list"),
        ({"video": "folder"}, "video is not for a suite"),
        ({"agent": None}, "give the agent"),
        ({"agent": [zero, zero]}, "agent is a list"),
        ({"open_envs": 0}, "open_envs"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message):
    given: dict[str, Any] = {"agent": zero, "env": {"push": Known, "lift": Known}, "n_trajectories": 3, "n_workers": 0}
    with pytest.raises(UsageError, match=message):
        evaluate(**{**given, **arguments})


@pytest.mark.parametrize("name", ["normalise", "tasks", "open_envs"])
def test_arguments_of_suites_are_for_suites(name):
    with pytest.raises(UsageError, match=f"{name} needs a suite"):
        evaluate(zero, Known, n_trajectories=3, **{name: 1})  # type: ignore[call-overload]


# Parts


def test_tasks_may_be_evaluated_by_themselves():
    whole = evaluate(zero, SUITE, n_trajectories=4, seed=1, n_workers=0)
    some = evaluate(zero, SUITE, n_trajectories=4, seed=1, n_workers=0, tasks=["arm/reach", "push"])
    assert list(some) == ["push", "arm/reach"]
    assert some["push"] == whole["push"]
    assert "1 task of 3 without trajectories: arm/lift" in str(some)


def test_a_part_has_a_range_of_each_task():
    parts = [evaluate(zero, SUITE, n_trajectories=7, seed=1, n_workers=0, part=(i, 3)) for i in (1, 2, 3)]
    for name in SUITE:
        own = [evaluate(zero, SUITE[name], n_trajectories=7, seed=1, n_workers=0, part=(i, 3)) for i in (1, 2, 3)]
        assert [part[name] for part in parts] == own


# Files


def test_a_suite_is_saved_and_loaded(tmp_path):
    suite = evaluate(zero, SUITE, n_trajectories=3, seed=1, n_workers=0, normalise=dict.fromkeys(SUITE, (0, 20)))
    assert SuiteEvaluation.load(suite.save(tmp_path / "suite.json")) == suite
    with pytest.raises(StorageError, match="no evaluation of streamsampler"):
        Evaluation.load(tmp_path / "suite.json")
    own = evaluate(zero, Known, n_trajectories=3, n_workers=0).save(tmp_path / "own.json")
    with pytest.raises(StorageError, match="no suite of streamsampler"):
        SuiteEvaluation.load(own)


def test_a_task_of_which_nothing_is_left_fails_with_the_reasons():
    seeds = evaluate(zero, Known, n_trajectories=3, seed=1, n_workers=0).seeds
    suite: dict[str, Any] = {"good": Known, "bad": functools.partial(Known, fails=seeds)}
    found = evaluate(zero, suite, seeds=seeds, n_workers=0, on_failure="drop")
    assert list(found) == ["good"]
    assert "each of its 3 trajectories was dropped" in found.failed["bad"]
    assert f"ValueError: seed {seeds[0]} fails" in found.failed["bad"]


class Unsteady(Known):
    """Raises in six of ten trajectories, by their seeds."""

    def reset(self, *, seed=None, options=None):
        if seed is not None and seed % 10 < 6:
            raise ValueError("unsteady")
        return super().reset(seed=seed, options=options)


@pytest.mark.parametrize(("seed", "n"), [(1, 2), (3, 5), (4, 1), (5, 9)])
def test_many_that_are_left_out_are_replaced_as_in_the_task_alone(seed, n):
    how: dict[str, Any] = {"n_trajectories": n, "seed": seed, "n_workers": 0, "on_failure": "drop"}
    found = evaluate(zero, {"good": Known, "bad": Unsteady}, **how)
    assert found["bad"].to_json() == evaluate(zero, Unsteady, **how).to_json()


def test_a_task_in_which_everything_raises_fails_as_it_does_alone():
    class Broken(Known):
        def reset(self, *, seed=None, options=None):
            raise ValueError("broken")

    found = evaluate(zero, {"good": Known, "bad": Broken}, n_trajectories=2, seed=1, n_workers=0, on_failure="drop")
    assert list(found) == ["good"]
    assert "too many to drop" in found.failed["bad"]


@pytest.mark.parametrize("inference", [pytest.param("worker", marks=pytest.mark.slow), "parent"])
def test_a_failure_has_the_same_facts_wherever_the_agent_is(inference):
    def too_careful(observation):
        raise ValueError("too large")

    def failing(task: str) -> Any:
        return too_careful if task == "lift" else zero

    suite: dict[str, Any] = {"push": Known, "lift": Known}
    how: dict[str, Any] = {"seeds": [5, 8], "n_workers": 1, "inference": inference, "worker_args": {"n_envs": 1}}
    how |= {"worker_class": VecWorker}
    where = "worker 0 failed while choosing an action in trajectory 0 of task 'lift' (seed 5): ValueError: too large"
    assert evaluate(failing, suite, **how).failed == {"lift": where}
    with pytest.raises(SamplerError, match=re.escape(where)) as caught:
        evaluate(failing, suite, tasks=["lift"], **how)
    assert caught.value.task == 0  # of those that are run
