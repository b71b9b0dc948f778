"""Hooks with fragments: an episode starts and ends once, in whichever calls, and losses of workers do not show."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from streamsampler import DefaultWorker, Limits, LocalSampler, MultiprocessingSampler, RaySampler, VecWorker
from streamsampler.errors import RolloutError, SerializationError, UsageError
from streamsampler.filters import RunningNorm
from streamsampler.testing import Fault, Faults
from tests.fragments.agents import Drawn, Fleeting, Mixing, Recurrent, Restorable, Sticky
from tests.fragments.test_losses import with_parameters
from tests.tiers import mostly_slow

SEED = 7
THREE: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
SLOW = pytest.mark.slow


class Diary:
    """Keeps what it is shown of an episode, and compares it with what is recorded of the call in hand."""

    aggregation: ClassVar = {"n_timesteps": "sum", "index": "last"}

    def on_trajectory_start(self, context: Any) -> None:
        assert (context.timestep, context.metrics, context.memory) == (0, {}, {})
        assert len(context.rewards) == 0
        context.memory.update(seen=[context.observation.copy()], actions=[], rewards=[], infos=0, versions=[])
        context.metrics["begun_in"] = context.agent_version
        context.metrics["began_with"] = float(context.reset_info.get("length", -1))

    def on_timestep(self, context: Any) -> None:
        memory = context.memory
        memory["seen"].append(context.observation.copy())
        memory["actions"].append(context.action)
        memory["rewards"].append(context.reward)
        memory["infos"] += context.info.get("t", 0)
        memory["versions"].append(context.agent_version)
        n = len(context.rewards)
        assert 0 < n <= context.timestep == len(memory["rewards"])
        assert context.rewards.tolist() == memory["rewards"][-n:]
        assert context.actions.tolist() == memory["actions"][-n:]
        np.testing.assert_array_equal(context.observations, memory["seen"][-n - 1 : -1])

    def on_trajectory_end(self, context: Any) -> None:
        memory = context.memory
        assert context.terminated or context.truncated
        context.metrics.update(
            n_timesteps=context.timestep, index=context.index, its_seed=float(context.seed),
            total=sum(memory["rewards"]), infos=memory["infos"], versions=" ".join(map(str, memory["versions"])),
            begins_with=float(memory["seen"][0].sum()), limited=context.truncated and not context.terminated,
            had_length=float(context.reset_info.get("length", -1)),
        )  # fmt: skip


def calls(sampler: Any, n: int = 6) -> list[Any]:
    return [with_parameters(sampler, call) for call in range(n)]


AGENTS: list[Any] = [
    pytest.param(Recurrent(), {}, id="one after the other"),
    pytest.param(Drawn(), THREE, id="side by side"),
    pytest.param(Restorable(), THREE, id="copies of an agent, side by side", marks=SLOW),
    pytest.param(Mixing(), THREE, id="rows that depend on one another", marks=SLOW),
]
LIMITED: dict[str, Any] = {"max_episode_length": 20}
NORM: dict[str, Any] = {"observation_filter": RunningNorm(clip=5.0)}


@pytest.mark.parametrize(("agent", "options"), AGENTS)
def test_metrics_come_with_the_part_in_which_an_episode_ends(agent, options):
    with LocalSampler(agent, Sticky, seed=SEED, hooks=Diary(), **options, **LIMITED) as sampler:
        batches = calls(sampler)
    with LocalSampler(agent, Sticky, seed=SEED, **options, **LIMITED) as sampler:
        plain = calls(sampler)
    n_continued = 0
    for batch, without in zip(batches, plain, strict=True):
        infos, ended = batch.episode_infos, ~batch.cut
        for name in ("observations", "actions", "rewards", "lengths", "indices", "agent_infos"):
            np.testing.assert_equal(getattr(batch, name), getattr(without, name))
        assert infos["_total"].tolist() == ended.tolist()
        assert infos["n_timesteps"][ended].tolist() == batch.episode_lengths.tolist()
        assert infos["total"][ended].tolist() == batch.episode_returns.tolist()
        assert infos["index"][ended].tolist() == batch.indices[ended].tolist()
        assert infos["its_seed"][ended].tolist() == [float(batch.seeds[row]) for row in np.flatnonzero(ended)]
        assert infos["limited"][ended].tolist() == (batch.truncated & ~batch.terminated)[ended].tolist()
        assert (infos["infos"] == [sum(range(1, int(length) + 1, 2)) for length in infos["n_timesteps"]])[ended].all()
        assert (infos["had_length"] == infos["began_with"])[ended].all()
        versions = [list(map(int, words.split())) for words in infos["versions"][ended]]
        assert [each[0] for each in versions] == infos["begun_in"][ended].tolist()
        assert all(each == sorted(each) and each[-1] == batch.agent_version for each in versions)
        n_continued += sum(len(set(each)) > 1 for each in versions)
        metrics = batch.stats.metrics
        assert metrics["n_timesteps"] == infos["n_timesteps"][ended].sum()
        assert metrics["index"] == batch.indices[ended][-1]
        assert metrics["total"] == pytest.approx(infos["total"][ended].mean())
    assert n_continued > 5


def kill(sampler: Any, n: int, draw: random.Random) -> None:
    for pid in draw.sample(sampler.worker_pids(), n):
        with contextlib.suppress(ProcessLookupError):  # it had nothing to do, and nobody looked
            os.kill(pid, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(("agent", "options"), mostly_slow(AGENTS))
@pytest.mark.parametrize("n_workers", [2, *(pytest.param(n, marks=SLOW) for n in (1, 3, 7))])
def test_whatever_is_killed_hooks_go_on_with_their_memory(agent, options, n_workers, tmp_path):
    draw = random.Random(n_workers)
    faults = Faults(tmp_path, *(Fault("kill", "step", step=step, times=2) for step in (4, 20)))
    limits: dict[str, Any] = {"max_restarts": None, "limits": Limits(max_lifetime_restarts=None)}
    given = {"seed": SEED, "hooks": Diary(), **options, **NORM, **LIMITED}
    with LocalSampler(agent, Sticky, **given) as reference:
        expected = calls(reference, 8)
    with MultiprocessingSampler(agent, faults.env(Sticky), n_workers=n_workers, **limits, **given) as sampler:
        for call, batch in enumerate(expected):
            found = with_parameters(sampler, call)
            assert found == batch
            assert found.stats.metrics == batch.stats.metrics
            kill(sampler, min(n_workers, 1 + call % 2), draw)
        assert faults.fired() == 4
        assert sampler.stats.restarts >= faults.fired()


@pytest.mark.ray
@pytest.mark.extras
def test_actors_that_are_killed(ray_cluster):
    given: dict[str, Any] = {"seed": SEED, "hooks": Diary()}
    with (
        LocalSampler(Recurrent(), Sticky, **given) as reference,
        RaySampler(Recurrent(), Sticky, n_workers=2, worker_resources={"num_cpus": 0}, **given) as sampler,
    ):
        for call in range(4):
            assert with_parameters(sampler, call) == with_parameters(reference, call)
            kill(sampler, 1, random.Random(call))


@pytest.mark.slow
@pytest.mark.parametrize("options", [{"engine": "queues"}, {"inference": "parent"}])
def test_with_queues_and_with_the_agent_here(options, tmp_path):
    faults = Faults(tmp_path, *(Fault("kill", "step", step=step) for step in (4, 20)))
    given: dict[str, Any] = {"seed": SEED, "hooks": Diary(), "worker_class": VecWorker, "worker_args": {"n_envs": 5}}
    given |= {"max_episode_length": 20}
    limits: dict[str, Any] = {"max_restarts": None, "limits": Limits(max_lifetime_restarts=None)}
    for agent in (Fleeting, Drawn):
        with LocalSampler(agent(), Sticky, **given) as reference:
            expected = calls(reference)
        with MultiprocessingSampler(agent(), faults.env(Sticky), n_workers=2, **options, **limits, **given) as sampler:
            for call, batch in enumerate(expected):
                found = with_parameters(sampler, call)
                assert found == batch
                assert found.stats.metrics == batch.stats.metrics
                kill(sampler, 1, random.Random(call))
    assert faults.fired() == 2


class Deadly:
    """Kills a process in the midst of a trajectory, from the sampler's own process."""

    pids: ClassVar[list[int]] = []

    def on_timestep(self, context: Any) -> None:
        if context.timestep == 2 and self.pids:
            os.kill(self.pids.pop(), signal.SIGKILL)


def test_whole_trajectories_after_fragments_are_restored_with_the_agent_here():
    given: dict[str, Any] = {"seed": SEED, "hooks": Deadly(), **THREE}
    with LocalSampler(Fleeting(), Sticky, **given) as reference:
        reference.obtain_fragments(5, 3), reference.obtain_trajectories(1)
        expected = reference.obtain_trajectories(6)
    with MultiprocessingSampler(Fleeting(), Sticky, n_workers=2, inference="parent", **given) as sampler:
        sampler.obtain_fragments(5, 3), sampler.obtain_trajectories(1)
        Deadly.pids.append(sampler.worker_pids()[0])  # of whole trajectories
        assert sampler.obtain_trajectories(6) == expected
        assert sampler.stats.restarts == 1


class Chance(Sticky):
    """Has something of chance, as its hooks have."""

    def __init__(self) -> None:
        super().__init__()
        self.luck, self.hook = np.random.random(), -1.0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, info = super().reset(seed=seed)
        return observation, info | {"luck": self.luck, "hook": self.hook}


class Drawing:
    def on_environment_created(self, env: Any, worker_number: int) -> None:
        env.unwrapped.hook = np.random.random()


@pytest.mark.parametrize(("agent", "options"), [(Recurrent(), {}), (Drawn(), THREE)])
def test_chance_in_constructors_and_hooks_is_the_same_for_any_number_of_workers(agent, options):
    found = []
    for n_workers in (1, 2):
        given: dict[str, Any] = {"seed": SEED, "hooks": Drawing(), "n_workers": n_workers, **options}
        with LocalSampler(agent, Chance, **given) as sampler:
            found.append(sampler.obtain_fragments(5, 6))
    assert found[0] == found[1]


class Notes:
    """Lines in a file, which several processes append to."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "notes"

    def add(self, *words: Any) -> None:
        with self.file.open("a") as file:
            file.write(" ".join(map(str, words)) + "\n")

    def of(self, kind: str) -> list[str]:
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [line.removeprefix(f"{kind} ") for line in lines if line.startswith(f"{kind} ")]


class Noting:
    """Notes each of its calls."""

    def __init__(self, folder: Path, *, raises: str = "") -> None:
        self.notes, self.raises = Notes(folder), raises

    def note(self, hook: str, *words: Any) -> None:
        self.notes.add(hook, *words)
        if hook == self.raises:
            raise ArithmeticError("no more")

    def on_environment_created(self, env: Any, worker_number: int) -> None:
        assert isinstance(env.unwrapped, Sticky)
        self.note("created", worker_number)

    def on_trajectory_start(self, context: Any) -> None:
        self.note("start", context.index, context.worker_number)

    def on_timestep(self, context: Any) -> None:
        self.note("timestep", context.index, context.timestep)

    def on_trajectory_end(self, context: Any) -> None:
        self.note("end", context.index)

    def on_trajectory_lost(self, context: Any, error: BaseException) -> None:
        self.notes.add("lost", context.index, context.timestep, type(error).__name__)


@pytest.mark.slow
@pytest.mark.parametrize("options", mostly_slow([{}, THREE]))
def test_nothing_is_called_while_actions_are_applied_again(options, tmp_path):
    hooks = Noting(tmp_path)
    with MultiprocessingSampler(Drawn() if options else Recurrent(), Sticky, seed=SEED, n_workers=2, hooks=hooks,
                                check=None, **options) as sampler:  # fmt: skip
        batches = []
        for call in range(3):
            batches.append(sampler.obtain_fragments(13, 6))
            kill(sampler, 2, random.Random(call))
    steps = hooks.notes.of("timestep")
    assert len(steps) == len(set(steps)) == sum(batch.n_timesteps for batch in batches)
    starts: list[Any] = [tuple(map(int, words.split())) for words in hooks.notes.of("start")]
    assert len(starts) == len(dict(starts))
    assert dict(starts) == {i: i % 6 // (3 if options else 1) % 2 for batch in batches for i in batch.indices.tolist()}
    assert sorted(map(int, hooks.notes.of("end"))) == sorted(i for each in batches for i in each.indices[~each.cut])
    created = hooks.notes.of("created")
    assert created.count("0") == created.count("1") == 9, "three environments of each worker, made three times"


@pytest.mark.parametrize("options", [{}, THREE])
@pytest.mark.parametrize("hook", ["start", "timestep", "end"])
def test_an_error_names_the_hook_and_the_episode(hook, options, tmp_path):
    hooks = Noting(tmp_path, raises=hook)
    words = {"start": "on_trajectory_start", "timestep": "on_timestep", "end": "on_trajectory_end"}[hook]
    agent = Drawn() if options else Recurrent()
    with (
        LocalSampler(agent, Sticky, seed=SEED, hooks=hooks, **options) as sampler,
        pytest.raises(RolloutError, match=f"calling the hook {words} in trajectory 0.*no more"),
    ):
        sampler.obtain_fragments(50, 3)
    (lost,) = hooks.notes.of("lost")
    assert (lost[:2], lost[-15:]) == ("0 ", "ArithmeticError")


@pytest.mark.parametrize(
    "options", [{}, THREE, pytest.param({"inference": "parent", "worker_args": {"n_envs": 3}}, marks=SLOW)]
)
def test_what_an_environment_raises_is_shown_to_the_hook_of_what_is_lost(options, tmp_path):
    hooks = Losses(tmp_path)
    kind = MultiprocessingSampler if "inference" in options else LocalSampler
    with kind(Fleeting() if options else Recurrent(), Broken, seed=SEED, hooks=hooks, check=None, **options) as sampler:
        sampler.obtain_fragments(3, 3)
        with pytest.raises(RolloutError, match=r"stepping the environment in trajectory 0.*out of order"):
            sampler.obtain_fragments(3, 3)
    assert hooks.notes.of("lost") == ["0 4 OSError"]


class Losses:
    def __init__(self, folder: Path) -> None:
        self.notes = Notes(folder)

    def on_trajectory_lost(self, context: Any, error: BaseException) -> None:
        self.notes.add("lost", context.index, context.timestep, type(error).__name__)


class Broken(Sticky):
    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        result = super().reset(seed=seed)
        self.length = 30
        return result

    def step(self, action: Any) -> Any:
        if self.t == 4:
            raise OSError("out of order")
        return super().step(action)


class Unpicklable:
    def on_timestep(self, context: Any) -> None:
        context.memory["file"] = (_ for _ in ())


class Seamed(DefaultWorker):
    def end_trajectory(self, context: Any) -> None:
        super().end_trajectory(context)


@pytest.mark.parametrize("options", [{}, THREE])
def test_a_memory_that_cannot_be_pickled_is_an_error(options):
    agent = Drawn() if options else Recurrent()
    with LocalSampler(agent, Sticky, seed=SEED, hooks=Unpicklable(), **options) as sampler:
        assert len(sampler.obtain_trajectories(3)) == 3
        with pytest.raises(RolloutError, match=r"the hooks' context.memory.*cannot be pickled.*generator") as caught:
            sampler.obtain_fragments(5, 3)
        assert isinstance(caught.value.original, SerializationError)


def no_table() -> Any:
    raise LookupError("no such table")


class EnvAgents:
    def __reduce__(self) -> Any:
        return no_table, ()


class Tabular:
    def on_trajectory_start(self, context: Any) -> None:
        context.memory["table"] = EnvAgents()


@pytest.mark.parametrize("options", [{}, THREE])
def test_a_memory_that_cannot_be_loaded_is_said_to_be_that(options, caplog):
    agent = Drawn() if options else Recurrent()
    with MultiprocessingSampler(agent, Sticky, seed=SEED, n_workers=1, hooks=Tabular(), **options) as sampler:
        sampler.obtain_fragments(1, 3)
        kill(sampler, 1, random.Random(0))
        assert not sampler.obtain_fragments(1, 3).continued.any()
    assert (
        caplog.text.count("its agent, or an object in the hooks' context.memory, raised LookupError: no such table")
        == 3
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"drop_if": bool}, "fragments do not support drop_if.*End such episodes in a wrapper of the environment"),
        ({"drop_if": bool, "hooks": Diary()}, "fragments do not support drop_if"),
        ({"worker_class": Seamed}, "do not call the methods that Seamed overrides.*pass hooks="),
    ],
)
def test_what_fragments_do_not_call_is_an_error(options, words):
    with LocalSampler(Recurrent(), Sticky, seed=SEED, **options) as sampler, pytest.raises(UsageError, match=words):
        sampler.obtain_fragments(10)
