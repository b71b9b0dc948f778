"""Whole trajectories between fragments leave the episodes that go on alone: they run in environments of their own."""

from __future__ import annotations

import contextlib
import itertools
import os
import pickle
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker, evaluate, sample_to_folder
from streamsampler.errors import RolloutError
from tests.fragments.agents import CountsRows, Drawn, Fleeting, Mixing, Recurrent, Sticky
from tests.scripted.games import Chooser, Comings, Turns
from tests.several.test_fragments import Knowing
from tests.several.test_rows import Rowwise as Policy
from tests.tiers import mostly_slow

BETWEEN: dict[str, Any] = {
    "trajectories": lambda sampler, folder: sampler.obtain_trajectories(2),
    "samples": lambda sampler, folder: sampler.obtain_samples(5),
    "exact": lambda sampler, folder: sampler.obtain_exact_trajectories(1),
    "stream": lambda sampler, folder: list(itertools.islice(sampler.stream(), 2)),
    "evaluate": lambda sampler, folder: evaluate(
        sampler=sampler, num_trajectories=3, return_of="all" if sampler.policy_names else None
    ),
    "folder": lambda sampler, folder: sample_to_folder(sampler, folder, n_trajectories=3, shard_size=9),
    "seeds": lambda sampler, folder: sampler.obtain_trajectories(seeds=[3, 4], reset_options={"a": 1}),
}
ROWS: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
PARENT: dict[str, Any] = {"n_workers": 2, "inference": "parent", "worker_args": {"n_envs": 3}}
OPTIONS: dict[str, Any] = {"seed": 1, "check": None}


class Tasked(Sticky):
    """Shows its task, which it keeps until it is given another one."""

    task = 0.0

    def set_task(self, task: float) -> None:
        self.task = task

    def observe(self) -> Any:
        return super().observe() + np.float32(self.task)


KINDS: dict[str, Any] = {
    "local": lambda env=Tasked, **more: LocalSampler(Recurrent(), env, **OPTIONS, **more),
    "rows": lambda env=Tasked, **more: LocalSampler(Drawn(), env, **OPTIONS, **ROWS, **more),
    "blocks": lambda env=Tasked, **more: LocalSampler(Mixing(), env, **OPTIONS, **ROWS, **more),
    "agents": lambda env=Comings, **more: LocalSampler({"first": Chooser()}, env, **OPTIONS, **more),
    "rows of agents": lambda env=Comings, **more: LocalSampler({"first": Policy()}, env, **OPTIONS, **ROWS, **more),
    "processes": lambda env=Tasked, **more: MultiprocessingSampler(Recurrent(), env, n_workers=2, **OPTIONS, **more),
    "rows in processes": lambda env=Tasked, **more: MultiprocessingSampler(
        Drawn(), env, n_workers=2, **OPTIONS, **ROWS, **more
    ),
    "parent": lambda env=Tasked, **more: MultiprocessingSampler(Drawn(), env, **OPTIONS, **PARENT, **more),
    "parent, in blocks": lambda env=Tasked, **more: MultiprocessingSampler(Mixing(), env, **OPTIONS, **PARENT, **more),
    "parent, at any pace": lambda env=Tasked, **more: MultiprocessingSampler(
        Fleeting(), env, **OPTIONS, **PARENT, **more
    ),
    "parent of agents": lambda env=Turns, **more: MultiprocessingSampler(
        {"red": Policy(), "blue": Knowing()}, env, **OPTIONS, **PARENT, **more
    ),
}
N_ENVS = 3


def go_on_alike(sampler: Any, reference: Any, between: Any, lengths: Sequence[int] = (9, 4, 11)) -> None:
    """Assert that fragments of a sampler are those of another one, in which nothing comes between them."""
    for length in lengths:
        while reference.agent_version < sampler.agent_version:
            reference.advance_version()
        assert sampler.obtain_fragments(length, N_ENVS) == reference.obtain_fragments(length, N_ENVS)
        between(sampler)
    assert reference.stats.further_envs == 0


QUICK = {
    ("local", "samples"),
    ("rows", "evaluate"),
    ("processes", "evaluate"),
    ("parent", "evaluate"),
    ("agents", "stream"),
}


def slowly(kind: str, between: str) -> list[Any]:
    return [] if (kind, between) in QUICK else [pytest.mark.slow]


@pytest.mark.parametrize(
    ("kind", "between"),
    mostly_slow(
        [
            pytest.param(kind, between, marks=slowly(kind, between))
            for kind, between in itertools.product(KINDS, BETWEEN)
            if between != "folder" or kind in ("local", "processes")  # folders refuse blocks, and these agents
        ]
    ),
)
def test_episodes_go_on(kind: str, between: str, caplog: Any, tmp_path: Path) -> None:
    folders = itertools.count()
    with KINDS[kind]() as reference, KINDS[kind]() as sampler:
        go_on_alike(sampler, reference, lambda it: BETWEEN[between](it, tmp_path / str(next(folders))))
        n_of_worker = 1 if kind in ("local", "agents", "processes") else N_ENVS
        assert 0 < sampler.stats.further_envs <= n_of_worker * 2
        assert "further environments" in str(sampler.stats)
    assert "episode" not in caplog.text


@pytest.mark.parametrize(
    "kind",
    mostly_slow(["rows", "local", *(kind for kind in KINDS if "agents" not in kind and kind not in ("local", "rows"))]),
)
def test_tasks_of_whole_trajectories_are_not_those_of_episodes(kind: str) -> None:
    def between(sampler: Any) -> None:
        for tasks in ([1.0, 2.0], None, [3.0, 4.0]):
            while whole.agent_version < sampler.agent_version:
                whole.advance_version()
            batch = sampler.obtain_trajectories(4, tasks=tasks)
            assert batch == whole.obtain_trajectories(4, tasks=tasks)
            assert (float(np.max(batch.observations)) > 1.0) == (tasks is not None)

    with KINDS[kind]() as sampler, KINDS[kind]() as whole, KINDS[kind]() as reference:
        between(sampler)
        go_on_alike(sampler, reference, between)


def test_an_env_update_in_any_call_ends_them_with_a_warning(caplog: Any) -> None:
    words = "env_update ends the open episodes of fragments"
    with KINDS["local"]() as sampler:
        sampler.obtain_trajectories(1, env_update=Sticky)
        sampler.obtain_fragments(9, N_ENVS)
        assert words not in caplog.text
        sampler.obtain_trajectories(1, env_update=Tasked)
        assert caplog.text.count(words) == 1
        batch = sampler.obtain_fragments(9, N_ENVS)
        assert not batch.continued.any()
        assert batch.seeds[0] == sampler.seeds(4, [0])[0]
        assert sampler.obtain_fragments(9, N_ENVS).continued.any()
        assert not sampler.obtain_fragments(9, N_ENVS, env_update=Sticky).continued.any()
        assert caplog.text.count(words) == 1
        assert sampler.obtain_fragments(9, N_ENVS).continued.any()


class Weighty(Recurrent):
    """Adds what it was made with to what it remembers."""

    def __init__(self, more: float) -> None:
        super().__init__()
        self.more = more

    def reset(self, seed: int) -> None:
        super().reset(seed)
        self.hidden = self.more


def replaced_between(sampler: Any, disturb: Any = None) -> list[Any]:
    """Return fragments before and after a call that replaces the agent, so that it begins anew within episodes."""
    first = sampler.obtain_fragments(9, N_ENVS)
    sampler.obtain_trajectories(2, agent_update=Weighty(50.0))
    if disturb is not None:
        sampler = disturb(sampler)
    sampler.obtain_trajectories(2)
    return [first, sampler.obtain_fragments(9, N_ENVS), sampler.obtain_fragments(9, N_ENVS)]


def saved(sampler: Any) -> Any:
    return pickle.loads(pickle.dumps(sampler))


def interrupted(sampler: Any) -> Any:
    sampler._life.session.mark_suspect()
    return sampler


@pytest.mark.parametrize("disturb", [None, saved, interrupted])
def test_an_agent_that_was_replaced_in_between_remembers_nothing_of_them(disturb: Any) -> None:
    with LocalSampler(Weighty(0.0), Sticky, **OPTIONS) as reference:
        expected = replaced_between(reference)
    with LocalSampler(Weighty(0.0), Sticky, **OPTIONS) as sampler:
        assert replaced_between(sampler, disturb) == expected
    assert float(np.max(expected[1].agent_infos["hidden"])) > 20.0


@pytest.mark.slow
def test_a_worker_in_the_place_of_a_lost_one_is_told_of_the_agent_that_was_replaced_in_between() -> None:
    def lose(sampler: Any) -> Any:
        killed(sampler)
        return sampler

    with LocalSampler(Weighty(0.0), Sticky, **OPTIONS) as reference:
        expected = replaced_between(reference, lambda sampler: sampler.obtain_trajectories(5) and sampler)
    with MultiprocessingSampler(Weighty(0.0), Sticky, n_workers=2, max_restarts=9, **OPTIONS) as sampler:
        assert replaced_between(sampler, lose) == expected
        assert sampler.stats.restarts > 0


class Refused(Recurrent):
    """Cannot be made in a worker."""

    def __setstate__(self, state: Any) -> None:
        raise ValueError("not here")


class Failing(Tasked):
    """Raises where it is told to: in the environments of whole trajectories alone."""

    where: ClassVar[list[str]] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if options == {"fail": True}:
            raise ValueError("told to")
        return super().reset(seed=seed)


@pytest.mark.parametrize("kind", mostly_slow(["local", "rows", "parent", "processes"]))
def test_what_raises_in_between_leaves_them_where_they_are(kind: str) -> None:
    def failing(sampler: Any) -> None:
        with pytest.raises(RolloutError, match="told to"):
            sampler.obtain_trajectories(3, reset_options={"fail": True})
        sampler.obtain_trajectories(2)
        if kind != "parent":
            with pytest.raises(RolloutError, match="not here"):
                sampler.obtain_trajectories(3, agent_update=Refused())

    with KINDS[kind](env=Failing) as sampler, KINDS[kind](env=Failing) as reference:
        go_on_alike(sampler, reference, failing)


@pytest.mark.parametrize("kind", mostly_slow(["local", "parent", "rows in processes"]))
def test_an_interrupt_in_between_leaves_them_where_they_are(kind: str, monkeypatch: Any) -> None:
    def interrupt(sampler: Any) -> None:
        for _ in sampler.stream():
            sampler._life.session.mark_suspect()
            break

    with KINDS[kind]() as sampler, KINDS[kind]() as reference:
        go_on_alike(sampler, reference, interrupt)


def killed(sampler: Any) -> None:
    for pid in filter(None, sampler.worker_pids()):
        with contextlib.suppress(ProcessLookupError):  # it is gone already where no call needed it since
            os.kill(pid, signal.SIGKILL)
    sampler.obtain_trajectories(5)


@pytest.mark.slow
@pytest.mark.parametrize("kind", mostly_slow(["parent", "processes", "rows in processes", "parent of agents"]))
def test_losses_in_between_leave_them_where_they_are(kind: str) -> None:
    with KINDS[kind](max_restarts=100) as sampler, KINDS[kind]() as reference:
        go_on_alike(sampler, reference, killed)
        assert sampler.stats.restarts > 0


def test_an_agent_here_that_cannot_say_what_it_remembers_loses_them_with_a_warning(caplog: Any) -> None:
    with MultiprocessingSampler(CountsRows(), Sticky, **OPTIONS, **PARENT) as sampler:
        first = sampler.obtain_fragments(9, N_ENVS)
        assert first.cut.any()
        assert sampler.obtain_fragments(1, N_ENVS).continued.any()
        sampler.obtain_trajectories(2)
        sampler.obtain_fragments(9, N_ENVS)
        assert "environment 0 cannot be restored: its agent has run whole trajectories since then, and " in caplog.text
        assert "get_state" in caplog.text


the_only = Sticky()


def only() -> Any:
    return the_only


@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 1}}])
def test_where_there_is_one_environment_alone_they_are_restored_in_it(options: Any) -> None:
    with LocalSampler(Recurrent(), only, **OPTIONS, **options) as sampler:
        with LocalSampler(Recurrent(), Sticky, **OPTIONS, **options) as reference:
            expected = [reference.obtain_fragments(n, 1) for n in (9, 4, 11)]
        found = []
        for n in (9, 4, 11):
            found.append(sampler.obtain_fragments(n, 1))
            sampler.obtain_trajectories(2)
        assert [batch.rewards.tolist() for batch in found] == [batch.rewards.tolist() for batch in expected]
        assert sampler.stats.further_envs == 0


class Hooked:
    """Counts the environments that it hears of, and keeps something of each episode, in its own attributes, too.

    It is copied for each environment: so those are safe as long as no worker is lost.
    """

    def on_environment_created(self, env: Any, worker_number: int) -> None:
        env.unwrapped.heard = getattr(env.unwrapped, "heard", 0) + 1

    def on_trajectory_start(self, context: Any) -> None:
        self.n_timesteps = 0

    def on_timestep(self, context: Any) -> None:
        assert context.env.unwrapped.heard == 1
        self.n_timesteps += 1
        context.memory["sum"] = context.memory.get("sum", 0.0) + float(context.reward)

    def on_trajectory_end(self, context: Any) -> None:
        context.metrics.update(sum=context.memory["sum"], own=self.n_timesteps)


@pytest.mark.parametrize("kind", ["local", "rows"])
def test_hooks_keep_what_they_know_of_episodes(kind: str) -> None:
    with KINDS[kind](hooks=Hooked()) as sampler, KINDS[kind](hooks=Hooked()) as reference:
        go_on_alike(sampler, reference, lambda it: it.obtain_trajectories(4), (9, 4, 40))
