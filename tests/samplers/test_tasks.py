"""Several tasks on one sampler: each has the trajectories of its own sampler, whatever becomes of the others."""

from __future__ import annotations

import logging
import os
import pickle
import random
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import Limits, LocalSampler, MultiprocessingSampler, PerWorker, VecWorker
from streamsampler.environments import PerEnv
from streamsampler.errors import NotReproducibleError, RolloutError, SamplerError, UsageError, WorkerError
from streamsampler.samplers.per_task import PerTask, TaskRun
from streamsampler.testing import FailPoint
from tests.faults.test_ends import gone
from tests.proofs._kills import disturbed
from tests.samplers.task_programs import KINDS, digests, program, seen_together
from tests.scripted.agents import always_zero
from tests.scripted.envs import AnyLength, Counting, Nested, Steps
from tests.tiers import mostly_slow

NAMES = ("reach", "push", "pick")


def tasks_of(*envs: Any, **options: Any) -> PerTask[Any]:
    return PerTask(envs, NAMES[: len(envs)], **options)


def whole(n: int = 4, *tasks: int) -> list[TaskRun]:
    return [TaskRun(task, 0, n) for task in tasks or range(3)]


def taken(stream: Any) -> Iterator[tuple[int, int]]:
    for trajectory in stream:
        yield stream.task, int(trajectory.indices[0])


def streamed(sampler: Any, runs: list[TaskRun], **given: Any) -> list[tuple[int, int]]:
    return list(taken(sampler.task_stream(runs, **given)))


def local(*envs: Any, agents: Any = always_zero, **options: Any) -> LocalSampler[Any, Any]:
    return LocalSampler(agents, tasks_of(*envs), seed=3, **options)


@pytest.mark.parametrize("number", mostly_slow(range(60), quick=len(KINDS)))
@pytest.mark.parametrize("n_workers", mostly_slow([2, 1, 5], quick=1))
def test_each_task_has_the_trajectories_of_its_own_sampler(n_workers, number):
    drawn = program(number)
    agents, envs = drawn.of_tasks()
    with LocalSampler(agents, envs, n_workers=n_workers, **drawn.options) as sampler:
        assert seen_together(sampler, drawn.calls(random.Random(number)), drawn.given) == drawn.alone()


@pytest.mark.parametrize("number", mostly_slow(range(40), quick=1))
@pytest.mark.parametrize("engine", mostly_slow(["processes", "queues"], quick=1))
def test_workers_that_are_killed_change_nothing(engine, number):
    drawn, dice = program(number), random.Random(number)
    agents, envs = drawn.of_tasks()
    options = {"engine": engine, "n_workers": 1 + number % 3, "max_restarts": None, **drawn.options}
    with MultiprocessingSampler(agents, envs, **options) as sampler:
        pauses = [dice.random() / 4 for _ in range(4)]
        with disturbed(sampler.worker_pids, dice, pauses):
            assert seen_together(sampler, drawn.calls(dice), drawn.given) == drawn.alone()


@pytest.mark.parametrize("point", mostly_slow(["sent", "start", "continue", "rollout", "write", "send"], quick=1))
def test_a_worker_may_die_at_any_place_of_its_loop(point, tmp_path):
    envs, runs = tasks_of(AnyLength, Counting, Nested), [*whole(10), TaskRun(0, 10, 10)]
    with LocalSampler("random", envs, seed=3) as sampler:
        expected = digests(sampler.task_stream(runs))
    fail_point = FailPoint(point, worker=0, occurrence=2, folder=tmp_path)
    with fail_point.armed(), MultiprocessingSampler("random", envs, seed=3, n_workers=2) as sampler:
        assert digests(sampler.task_stream(runs)) == expected


def test_what_a_sampler_says_of_a_task_is_what_its_own_would_say():
    envs = tasks_of("CartPole-v1", partial(Steps, length=2), Nested)
    with LocalSampler(always_zero, envs, seed=3, max_episode_length=20) as sampler:
        streamed(sampler, whole(2))
        streamed(sampler, whole(2))
        for number, env in enumerate(envs):
            with LocalSampler(always_zero, env, seed=3, max_episode_length=20) as own:
                before = own.provenance()
                own.obtain_trajectories(2)
                assert sampler.provenance(number) == before | {"fingerprints": own.provenance()["fingerprints"]}
        assert [str(task.name) for task in sampler.tasks] == [f"task {name!r}" for name in NAMES]


def test_a_copy_and_a_sampler_that_was_interrupted_have_the_same_trajectories():
    with local(AnyLength, Interrupting, Nested) as sampler:
        Interrupting.left = 1
        with pytest.raises(KeyboardInterrupt):
            streamed(sampler, whole())
        found = digests(sampler.task_stream(whole()))
        with pickle.loads(pickle.dumps(sampler)) as copy:
            assert digests(copy.task_stream(whole())) == found
    with local(AnyLength, Interrupting, Nested) as sampler:
        assert digests(sampler.task_stream(whole())) == found


class Interrupting(AnyLength):
    """Is interrupted in the middle, as often as is left."""

    left: ClassVar = 0

    def step(self, action: Any) -> Any:
        if Interrupting.left and self.t == 1:
            Interrupting.left -= 1
            raise KeyboardInterrupt
        return super().step(action)


class Numbered(AnyLength):
    """Keeps what was opened and closed, in this process."""

    opened: ClassVar[list[int]] = []
    closed: ClassVar[list[int]] = []

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.opened.append(number)
        self.most = len(self.opened) - len(self.closed)

    def close(self) -> None:
        self.closed.append(self.number)


@pytest.mark.parametrize("open_envs", [1, 2, 3])
def test_a_worker_has_the_environments_of_so_many_tasks(open_envs):
    Numbered.opened, Numbered.closed = [], []
    envs = tasks_of(*(partial(Numbered, number) for number in range(3)), open_envs=open_envs)
    with LocalSampler(always_zero, envs, seed=3, check=None) as sampler:
        assert Numbered.opened == []
        streamed(sampler, whole(2, 0, 1, 0, 2, 1))
        assert len(Numbered.opened) - len(Numbered.closed) == open_envs
        reopened = {1: [0, 1, 0, 2, 1], 2: [0, 1, 2, 1], 3: [0, 1, 2]}
        assert Numbered.opened == reopened[open_envs]
    assert sorted(Numbered.closed) == sorted(Numbered.opened)


class Unclosable(AnyLength):
    """Cannot be closed."""

    def close(self) -> None:
        raise OSError("it is stuck")


def test_an_environment_that_cannot_be_closed_is_told(caplog):
    """In the middle in the log: no trajectory lacks anything. At the end as an error, as of one task."""
    sampler = LocalSampler(always_zero, tasks_of(Unclosable, Steps, Unclosable, open_envs=1), seed=3)
    assert len(streamed(sampler, whole(2))) == 6
    assert "task 'reach': closing the environment raised OSError: it is stuck" in caplog.text
    with pytest.raises(RolloutError, match=r"closing the environment: OSError: it is stuck \(task 'pick'\)"):
        sampler.close()


class Deadly(AnyLength):
    """Ends its process, or hangs, when it is closed.

    Args:
        how: "kill", "exit" or "hang".
    """

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how

    def close(self) -> None:
        if self.how == "kill":
            os.kill(os.getpid(), signal.SIGSEGV)
        if self.how == "exit":
            os._exit(3)
        time.sleep(1_000)


ENDS = {
    "kill": "was killed by SIGSEGV (a fault in native code)",
    "exit": "ended with exit code 3",
    "hang": "made no pro",
}


@pytest.mark.parametrize("engine", mostly_slow(["processes", "queues"], quick=1))
@pytest.mark.parametrize("n_workers", mostly_slow([2, 1, 5], quick=1))
@pytest.mark.parametrize("how", mostly_slow(ENDS, quick=1))
def test_a_worker_that_is_lost_in_closing_names_the_task_and_costs_it_nothing(how, n_workers, engine, caplog):
    envs, calls = tasks_of(partial(Deadly, how), AnyLength, partial(Deadly, how), open_envs=1), [whole(), whole()]
    with LocalSampler(always_zero, PerTask([AnyLength] * 3, NAMES), seed=3) as sampler:
        expected = [digests(sampler.task_stream(runs)) for runs in calls]
    options: dict[str, Any] = {"engine": engine, "n_workers": n_workers, "limits": Limits(close_timeout=0.5)}
    with MultiprocessingSampler(always_zero, envs, seed=3, max_restarts=0, **options) as sampler:
        assert [digests(sampler.task_stream(runs)) for runs in calls] == expected
        assert f"{ENDS[how]}" in caplog.text
        assert "while closing the environment of task 'reach'; a new one takes its place" in caplog.text
        assert sampler.stats.restarts
        assert sampler.stats.failed_trajectories == 0
    if n_workers == 1:
        assert caplog.messages[-1] == "worker 0 ended before the environment of task 'pick' was closed"


class Failing(Steps):
    """Fails in the first timestep of the trajectory with this seed.

    Args:
        seed: The seed.
        how: "raise", "kill" or "hang".
    """

    def __init__(self, seed: int, how: str = "raise") -> None:
        super().__init__()
        self.seed, self.how = seed, how

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.fails = seed == self.seed
        return super().reset(seed=seed)

    def step(self, action: Any) -> Any:
        if self.fails and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fails and self.how == "hang":
            time.sleep(1_000)
        if self.fails:
            raise ValueError("broken on purpose")
        return super().step(action)


SEED = LocalSampler(always_zero, Steps, seed=3, check=None).seeds(1, [2])[0]


def no_env() -> Any:
    raise OSError("no simulator")


class Fussy:
    """An agent that takes no spaces of one number."""

    def set_spaces(self, observation_space: Any, action_space: Any) -> None:
        if observation_space.shape == (1,):
            raise TypeError("too small")

    def get_action(self, observation: Any) -> Any:
        return 0, {}


WRONG: dict[str, tuple[Any, Any, int, str]] = {
    "step": (always_zero, partial(Failing, SEED), 2, rf"step.* in trajectory 2 of task 'push' \(seed {SEED}\): Value"),
    "environment": (always_zero, no_env, 0, "failed while making the environment of task 'push': OSError: no simul"),
    "agent": (Fussy(), Steps, 0, "failed while constructing the agent of task 'push': TypeError: too small"),
}


@pytest.mark.parametrize("make", mostly_slow([LocalSampler, partial(MultiprocessingSampler, n_workers=2)], quick=1))
@pytest.mark.parametrize("what", WRONG)
def test_an_error_names_its_task_and_comes_after_all_that_precedes_it(make, what):
    agent, env, n_before, text = WRONG[what]
    agents = PerTask([always_zero, agent, always_zero], NAMES)
    with make(agents, tasks_of(AnyLength, env, Counting), seed=3) as sampler:
        came: list[tuple[int, int]] = []
        with pytest.raises(RolloutError, match=text) as caught:
            came.extend(taken(sampler.task_stream(whole())))
        assert came == [(0, 0), (0, 1), (0, 2), (0, 3), *((1, index) for index in range(n_before))]
        assert (caught.value.task, caught.value.trajectory) == (1, n_before or None)
        assert streamed(sampler, [TaskRun(2, 0, 2), TaskRun(0, 4, 1)]) == [(2, 0), (2, 1), (0, 4)]


@pytest.mark.parametrize("how", ["kill", *mostly_slow(["hang"], quick=0)])
def test_a_loss_that_repeats_itself_names_its_task(how):
    options: dict[str, Any] = {"step_timeout": 1.0} if how == "hang" else {}
    envs = tasks_of(AnyLength, partial(Failing, SEED, how), Counting)
    with MultiprocessingSampler(always_zero, envs, seed=3, n_workers=2, max_restarts=1, **options) as sampler:
        with pytest.raises(
            WorkerError, match=rf"in trajectory 2 of task 'push' \(seed {SEED}\); that is 2 losses"
        ) as it:
            streamed(sampler, whole())
        assert it.value.task == 1
        assert all(f"{incident.task}" == "task 'push'" for incident in it.value.incidents)
        assert streamed(sampler, whole(2, 0, 2)) == [(0, 0), (0, 1), (2, 0), (2, 1)]


def test_a_loss_is_made_good(caplog):
    """The exception is one of those that cost a worker: the trajectory is run again."""
    with local(AnyLength, Once, Counting, restart_on=ConnectionError, check=None) as sampler:
        Once.left = 1
        assert len(streamed(sampler, whole())) == 12
        assert "in trajectory 0 of task 'push'; a new one takes its place" in caplog.text


class Once(Steps):
    """Loses its connection once."""

    left: ClassVar = 1

    def step(self, action: Any) -> Any:
        if Once.left:
            Once.left -= 1
            raise ConnectionError("gone")
        return super().step(action)


def test_what_is_left_out_is_told_by_task():
    with local(AnyLength, partial(Failing, SEED), Counting, on_failure="drop") as sampler:
        stream = sampler.task_stream([TaskRun(1, 0, 3), *whole(4, 0, 2)])
        came = list(taken(stream))
        assert came == [(1, 0), (1, 1), *((task, index) for task in (0, 2) for index in range(4))]
        (one,) = stream.left_out[1]
        assert (one.version, one.index, one.error) == (1, 2, "ValueError: broken on purpose")
        assert (stream.left_out[0], stream.left_out[2], sampler.stats.dropped) == ([], [], [one])


def test_what_was_left_out_before_an_error_is_told():
    """Of the task before it, the last one: no trajectory that is returned comes after it."""
    with local(partial(Failing, SEED), no_env, Counting, on_failure="drop") as sampler:
        stream = sampler.task_stream(whole(3))
        with pytest.raises(RolloutError, match="task 'push'"):
            list(stream)
        assert [it.index for it in stream.left_out[0]] == [2]


def test_too_many_that_are_left_out_are_an_error_of_their_task():
    class Always(Steps):
        def step(self, action: Any) -> Any:
            raise ValueError("broken on purpose")

    with local(AnyLength, Always, on_failure="drop") as sampler:
        assert streamed(sampler, [TaskRun(1, 0, 99), TaskRun(0, 0, 1)]) == [(0, 0)]
        with pytest.raises(
            RolloutError, match=r"100 trajectories failed and 0 did.*trajectory 99 of task 'push'"
        ) as it:
            streamed(sampler, [TaskRun(0, 0, 1), TaskRun(1, 0, 150)])
        assert (it.value.task, it.value.trajectory) == (1, 99)


class Odd(Counting):
    """Has observations outside its space."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 1, (1,), np.float32)


def test_anomalies_are_told_by_task(caplog):
    with local(Steps, Odd, Counting) as sampler:
        stream = sampler.task_stream(whole(2))
        list(stream)
        n, first = stream.anomalies_of_tasks[1]
        assert first is not None
        assert (stream.anomalies_of_tasks[0], stream.anomalies_of_tasks[2]) == ((0, None), (0, None))
        assert (n, first.index, first.timestep) == (sampler.stats.anomalies, 0, 0)
    (text,) = caplog.messages
    assert text.startswith("task 'push': Odd: observation is outside its space")


def test_what_workers_warn_of_names_the_task(caplog):
    """Each warns once, and so it does for another task; what is logged outside of tasks has no name."""
    vec: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}
    agents = PerTask([OneByOne(), always_zero, OneByOne()], NAMES)
    with LocalSampler(agents, tasks_of(AnyLength, Counting, Steps), seed=3, **vec) as sampler:
        streamed(sampler, whole())
    hint = "VecWorker: the agent (OneByOne) has no get_actions"
    named = [text.partition(": ") for text in caplog.messages]
    assert [task for task, _, text in named if text.startswith(hint)] == ["task 'reach'", "task 'pick'"]
    logging.getLogger("streamsampler").warning("afterwards")
    assert caplog.messages[-1] == "afterwards"


class OneByOne:
    """An agent that is asked for one action at a time."""

    def get_action(self, observation: Any) -> Any:
        return 0, {}


class Drifting(Steps):
    """Goes on counting from one trajectory to the next."""

    total: float = 0.0

    def step(self, action: Any) -> Any:
        self.total += 1
        observation, _, *rest = super().step(action)
        return observation, self.total, *rest


def test_each_task_is_checked_once_and_named(caplog):
    with local(Steps, Drifting, AnyLength, n_workers=2) as sampler:
        streamed(sampler, whole(5))
        checked = sampler.stats.checked_trajectories
        assert checked >= 9
        assert caplog.text.count("task 'push': ") == 1
        assert caplog.text.count("came out differently") == 1
        streamed(sampler, whole(5))
        assert sampler.stats.checked_trajectories == checked


def test_a_task_that_is_refused_lets_those_before_it_pass():
    with local(Steps, Drifting, AnyLength, check="error") as sampler:
        came: list[tuple[int, int]] = []
        with pytest.raises(NotReproducibleError, match="came out differently") as caught:
            came.extend(taken(sampler.task_stream(whole(3))))
        assert (came, caught.value.task) == ([(0, 0), (0, 1), (0, 2)], 1)
        assert streamed(sampler, whole(1, 2, 0)) == [(2, 0), (0, 0)]


def refused(text: str, agents: Any, envs: Any, make: Any = LocalSampler, **options: Any) -> None:
    with pytest.raises((UsageError, TypeError), match=text):
        make(agents, envs, seed=3, **options)


class Waits(Steps):
    """Is awaited."""

    async def step(self, action: Any) -> Any:  # type: ignore[override]
        return super().step(action)


def test_what_cannot_be_is_refused_before_workers_start():
    each = tasks_of(Steps, AnyLength)
    refused("task 'push': an environment is an id", always_zero, tasks_of(Steps, 3))
    refused("task 'push': .*NoSuch-v0", always_zero, tasks_of(Steps, "NoSuch-v0"))
    refused("task 'reach': .*agent", PerTask([3, always_zero], NAMES[:2]), each)
    refused("task 'push': a task needs one environment for all workers", always_zero, tasks_of(Steps, [Steps, Steps]))
    refused("task 'push': a task needs one agent", PerTask(["random", PerWorker(["random"])], NAMES[:2]), each)
    refused("task 'push': envs has 2 environments for one worker", always_zero, tasks_of(Steps, PerEnv([Steps] * 2)))
    refused("agents is PerTask, but envs is not", PerTask(["random"]), Steps)
    refused("agents and envs have different tasks", PerTask(["random"] * 2, ["a", "b"]), each)
    refused("task 'reach' needs DefaultWorker and task 'push' needs AsyncWorker", "random", tasks_of(Steps, Waits))
    refused("staleness=1 needs a sampler of one task, but this one has 2 tasks", "random", each, staleness=1)
    refused('inference="parent" runs one task', "random", each, MultiprocessingSampler, inference="parent")


def test_tasks_that_are_none():
    for text, items, names in [
        ("empty list", [], None),
        ("PerTask has 2 items, but 1 name", [Steps, Steps], ["a"]),
        ("two tasks have the name 'a'", [Steps, Steps, Steps], ["b", "a", "a"]),
        ("a list with one item for each task, not a dict", {"a": Steps}, None),
        ("a list with one name for each task, got 'ab'", [Steps, Steps], "ab"),
    ]:
        with pytest.raises(UsageError, match=text):
            PerTask(items, names)
    with pytest.raises(UsageError, match="open_envs must be at least 1, got 0"):
        PerTask([Steps], open_envs=0)


def test_runs_that_cannot_be():
    with local(Steps, AnyLength) as sampler:
        wrong: list[tuple[str, list[TaskRun], dict[str, Any]]] = [
            ("got no runs", [], {}),
            ("task 2 does not exist: this sampler has tasks 0 to 1", [TaskRun(2, 0, 1)], {}),
            ("n of task 'push' must be at least 1, got 0", [TaskRun(1, 0, 0)], {}),
            ("first of task 'push' must be at least 0, got -1", [TaskRun(1, -1, 2)], {}),
            (
                "task 'push': no seeds or reset_options for trajectories 1 to 3",
                [TaskRun(1, 1, 3)],
                {"seeds": [7, 8, 9]},
            ),
            ("reset_options must be a dict", [TaskRun(1, 0, 1)], {"reset_options": 3}),
        ]
        for text, runs, given in wrong:
            with pytest.raises(UsageError, match=text):
                sampler.task_stream(runs, **given)
    vec: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 4}}
    in_the_middle = pytest.raises(UsageError, match="a run of task 'reach' must start at a multiple of 4, got 2")
    with local(Steps, AnyLength, **vec) as sampler, in_the_middle:
        sampler.task_stream([TaskRun(0, 2, 4)])
    with local(Steps, AnyLength, **vec, drop_if=bool) as sampler:
        with pytest.raises(UsageError, match="a run of task 'push' must have a multiple of 4 trajectories, got 5"):
            sampler.task_stream([TaskRun(1, 0, 5)])
        sampler.task_stream([TaskRun(1, 0, 5)], seeds=range(5))


def test_calls_of_samplers_of_one_task_are_refused():
    with local(Steps, AnyLength) as sampler:
        for call in (
            lambda: sampler.obtain_samples(3),
            lambda: sampler.obtain_trajectories(3, agent_update=always_zero),
            lambda: sampler.obtain_fragments(3, 1),
            lambda: next(sampler.stream()),
            lambda: sampler.replay(1, 0),
            lambda: sampler.provenance(),
            lambda: sampler.state_dict(),
            lambda: sampler.check_renders(),
        ):
            with pytest.raises(UsageError, match="needs a sampler of one task, but this one has 2 tasks"):
                call()
        with pytest.raises(UsageError, match="task 2 does not exist: this sampler has tasks 0 to 1"):
            sampler.provenance(2)
        assert streamed(sampler, whole(1, 1)) == [(1, 0)]
    with LocalSampler(always_zero, Steps) as sampler, pytest.raises(UsageError, match="made with envs=PerTask"):
        sampler.task_stream([TaskRun(0, 0, 1)])


class Slow(Steps):
    """Takes long to make; writes to a pipe when it begins."""

    def __init__(self, pipe: Path) -> None:
        super().__init__()
        pipe.write_text("begun")
        time.sleep(1_000)


def test_nothing_is_left_of_a_sampler_that_is_closed_while_an_environment_is_made(tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    making = os.open(pipe, os.O_RDWR)
    sampler = MultiprocessingSampler(always_zero, tasks_of(Steps, partial(Slow, pipe)), seed=3, n_workers=2)
    stream, pids = sampler.task_stream(whole(3, 0, 1)), sampler.worker_pids()
    assert [next(stream).indices[0] for _ in range(3)] == [0, 1, 2]
    me = threading.get_ident()

    def interrupted() -> None:
        Thread(target=lambda: os.read(making, 1) and signal.pthread_kill(me, signal.SIGINT), daemon=True).start()
        next(stream)

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    sampler.close()
    assert gone(pids)
    os.close(making)


def test_a_stream_ends_with_the_next_call_and_goes_on_with_another():
    with local(Steps, AnyLength, Counting, n_workers=2) as sampler:
        first = sampler.task_stream(whole(50))
        next(first)
        assert streamed(sampler, [TaskRun(1, 3, 2)]) == [(1, 3), (1, 4)]
        with pytest.raises(SamplerError, match="ended by a later call"):
            list(first)
