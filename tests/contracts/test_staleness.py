"""`staleness=1`: each batch is made with the parameters of the call before; workers sample it between two calls."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, PerWorker, VecWorker, evaluate
from streamsampler.core.fingerprints import Fingerprint
from streamsampler.data.statistics import Stats
from streamsampler.errors import NotReproducibleError, RolloutError, SamplerError, UsageError
from streamsampler.filters import RunningNorm
from streamsampler.protocol.scheduler import Scheduler
from streamsampler.samplers.base import Sampler
from streamsampler.samplers.batches import BatchMaker
from streamsampler.samplers.call import Call
from streamsampler.samplers.folders import sample_to_folder
from streamsampler.samplers.off_by_one import OffByOneSchedule
from streamsampler.samplers.update_store import UpdateStore
from streamsampler.testing import Fault, Faults
from streamsampler.workers.fail_points import Records
from tests.contracts.conftest import RAY, SLOW_QUEUES, Maker, on, slow
from tests.contracts.told import Tasked, first_rewards, told
from tests.faults.test_interrupts import raise_once
from tests.patience import PATIENCE
from tests.scripted.agents import Drawing, Stamping, always_zero
from tests.scripted.envs import AnyLength, GlobalNoise, Steps
from tests.scripted.failing import Boom
from tests.scripted.vectors import Vector

SEED = 4711
LAGGING: dict[str, Any] = {"seed": SEED, "staleness": 1, "check": None}
LOCAL = on("local", *slow("processes"))
Asked = tuple[str, int]  # which call of the sampler, and its number
ANEW = 6  # the call that another environment comes with
CALLS: list[Asked] = [
    *(("obtain_samples", n) for n in (20, 30, 25)),
    ("obtain_trajectories", 5),
    *(("obtain_samples", n) for n in (60, 15)),
    *(("obtain_trajectories", n) for n in (5, 2)),
    *(("obtain_samples", n) for n in (17, 17)),
]
VERSIONS = [1, 1, 2, 3, 4, 6, 6, 7, 8, 9]
"""Of these calls' batches: of the first version in the first two calls, and where an environment comes with a call."""


def obtained(sampler: Sampler, calls: Sequence[Asked] = CALLS, first: int = 1) -> list[Any]:
    """What calls return, the first of which has a number; their parameters are their numbers."""
    return [
        getattr(sampler, kind)(n, agent_update=(number,), env_update=partial(Steps, 5) if number == ANEW else None)
        for number, (kind, n) in enumerate(calls, start=first)
    ]


@on("processes", "waiting processes", *slow("local", "lanes", "vec"), RAY)
def test_each_batch_is_of_the_version_before(make_sampler: Maker) -> None:
    sampler = make_sampler(Stamping(), AnyLength, n_workers=3, **LAGGING)
    provenances, batches = [], []
    for number, call in enumerate(CALLS, start=1):
        provenances.append(sampler.provenance())
        batches += obtained(sampler, [call], number)
    for batch, version, (kind, n) in zip(batches, VERSIONS, CALLS, strict=True):
        assert set(batch.agent_versions.tolist()) == {version} == set(batch.actions.tolist())
        assert batch.seeds == tuple(sampler.seeds(version, batch.indices))
        if kind == "obtain_samples":
            assert batch.n_timesteps - batch.lengths[-1] < n <= batch.n_timesteps
        # What comes from a sampler of that version.
        env = AnyLength if version < ANEW else partial(Steps, 5)
        with LocalSampler(Stamping(version), env, seed=SEED, check=None) as alone:
            alone._life.session.scheduler.version = version - 1
            stream = alone.stream(first_trajectory=int(batch.indices[0]))
            assert list(islice(stream, n if kind == "obtain_trajectories" else len(batch))) == list(batch)
    firsts = [int(batch.indices[0]) for batch in batches]
    assert firsts == [0, len(batches[0]), 0, 0, 0, 0, len(batches[5]), 0, 0, 0]
    assert [max(batch.lengths) == min(batch.lengths) == 5 for batch in batches] == [False] * 5 + [True] * 5
    # Provenance says which trajectories come next.
    assert [it["staleness"] for it in provenances[:3]] == [1, 1, 1]
    assert [it.get("first_trajectory", 0) for it in provenances[:3]] == firsts[:3]
    assert [it.get("agent_version", 1) for it in provenances[:3]] == VERSIONS[:3]
    assert sampler.replay(9, 2, recorded=batches[-1]).difference is None, "with the parameters of the last batch"
    with pytest.raises(UsageError, match="the sampler has the agent of version 9"):
        sampler.replay(10, 0)


class Versioned:
    """Hooks that say which agent version they were told."""

    def on_trajectory_end(self, context: Any) -> None:
        context.metrics["version"] = context.agent_version


@on("vec", *slow("local", "lanes", "processes"))
def test_hooks_are_told_the_version_of_the_batch(make_sampler: Maker) -> None:
    batches = obtained(make_sampler(Stamping(), AnyLength, n_workers=2, hooks=Versioned(), **LAGGING))
    assert [set(batch.episode_infos["version"].tolist()) for batch in batches] == [{version} for version in VERSIONS]


@on("local", "waiting", "processes")
def test_workers_with_agents_of_their_own(make_sampler: Maker) -> None:
    """Whose index is whose depends on the kind of call."""
    sampler = make_sampler([Stamping(7), Stamping(8)], AnyLength, n_workers=2, **LAGGING)
    batches = [
        sampler.obtain_exact_trajectories(3),
        sampler.obtain_exact_trajectories(2, agent_update=PerWorker([(17,), (18,)])),
        sampler.obtain_trajectories(5, agent_update=PerWorker([(27,), None])),
        sampler.obtain_exact_trajectories(2, agent_update=Stamping(30)),
        sampler.obtain_trajectories(3),
    ]
    actions = [[7, 7, 7, 8, 8, 8], [7, 7, 8, 8], [17, 18, 17, 18, 17], [27, 27, 18, 18], [30, 30, 30]]
    assert [[set(one.actions.tolist()) for one in batch] for batch in batches] == [
        [{action} for action in each] for each in actions
    ]
    assert batches[1].indices.tolist() == [6, 7, 8, 9]


@LOCAL
def test_seeds_options_and_tasks_are_of_their_call(make_sampler: Maker) -> None:
    """Only the parameters are those of the call before."""
    sampler = make_sampler(Stamping(), Tasked, n_workers=2, **LAGGING)
    batches = [
        sampler.obtain_trajectories(3, agent_update=(1,), reset_options={"level": 1}),
        sampler.obtain_trajectories(agent_update=(2,), seeds=[5, 6, 7]),
        sampler.obtain_trajectories(2, agent_update=(3,), reset_options=[{"level": 2}, None]),
        sampler.obtain_trajectories(1, agent_update=(4,), tasks=[3.0, 5.0]),
        sampler.obtain_trajectories(2, agent_update=(5,)),
    ]
    assert [set(batch.actions.tolist()) for batch in batches] == [{1}, {1}, {2}, {3}, {4}]
    assert [told(batch, "level") for batch in batches] == [[1, 1, 1], [0, 0, 0], [2, 0], [0, 0], [0, 0]]
    assert [first_rewards(batch) for batch in batches[2:]] == [[0.0, 0.0], [3.0, 5.0], [0.0, 0.0]]
    assert [batch.indices[0] for batch in batches] == [0, 3, 0, 0, 0]
    assert batches[1].seeds == (5, 6, 7)
    assert batches[2].seeds == tuple(sampler.seeds(2, batches[2].indices))


class Fussy(Stamping):
    """Takes no parameter of a hundred or more, and breaks with one from fifty on."""

    def set_param_values(self, values: tuple[int]) -> None:
        if values[0] >= 100:
            raise Boom("too much")
        super().set_param_values(values)

    def get_action(self, observation: Any) -> tuple[int, dict[str, Any]]:
        if self.version >= 50:
            raise Boom("out of ideas")
        return super().get_action(observation)


@LOCAL
def test_after_an_error_a_call_begins_afresh(make_sampler: Maker) -> None:
    """An update is refused in the call after its own: then neither it nor that call's update is in force."""
    for parameter, words, following in (
        (60, r"trajectory 0 of agent version 3: .*out of ideas", [(5, 5), (5, 5), (6, 6)]),
        (100, "too much", [(5, 2), (5, 2), (6, 2)]),
    ):
        sampler = make_sampler(Fussy(), AnyLength, n_workers=2, **LAGGING)
        batches = obtained(sampler, [("obtain_samples", 20)] * 2)
        batches.append(sampler.obtain_samples(20, agent_update=(parameter,)))  # is of version 2
        with pytest.raises(RolloutError, match=words):
            sampler.obtain_samples(20, agent_update=(4,))
        for number in (5, 6, 7):
            update = (number,) if parameter == 60 else None
            batches.append(sampler.obtain_samples(20, agent_update=update))
        found = [(batch.agent_version, batch.actions[0]) for batch in batches]
        assert found == [(1, 1), (1, 1), (2, 2), *following]
        assert [int(batch.indices[0]) for batch in batches[3:]] == [0, batches[3].n_trajectories, 0]
    with pytest.raises(RolloutError, match="too much"):
        sampler.obtain_samples(20, agent_update=(100,), env_update=AnyLength)
    assert sampler.obtain_samples(20).actions[0] == 2


class Broken(AnyLength):
    """Cannot be made, or differs from itself."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.n_resets = 0
        if how == "made":
            raise Boom("no such level")

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.n_resets += 1
        return super().reset(seed=self.n_resets, options=options)


@LOCAL
@pytest.mark.parametrize(
    ("how", "words"), [("made", "no such level"), ("checked", "depends on more than its seed|differ")]
)
def test_a_refused_environment_takes_back_its_own_call_alone(make_sampler: Maker, how: str, words: str) -> None:
    """What came with the call before it was refused by nobody."""
    sampler = make_sampler(Fussy(), AnyLength, n_workers=2, **LAGGING | {"check": "error"})
    obtained(sampler, [("obtain_trajectories", 4)] * 3)
    for broken in (1, 2):
        with pytest.raises(SamplerError, match=words):
            sampler.obtain_trajectories(4, agent_update=(4,), env_update=partial(Broken, how))
        batch = sampler.obtain_trajectories(4)
        assert (batch.agent_version, set(batch.actions.tolist())) == (3 + 2 * broken, {3})
    # Nobody has tried the last update when the environment is refused: it is refused later.
    sampler.obtain_trajectories(4, agent_update=(100,))
    with pytest.raises(RolloutError, match="no such level"):
        sampler.obtain_trajectories(4, env_update=partial(Broken, "made"))
    with pytest.raises(RolloutError, match="too much"):
        sampler.obtain_trajectories(4)
    assert set(sampler.obtain_trajectories(4).actions.tolist()) == {3}


@LOCAL
def test_what_cannot_be_gathered_with_an_update_is_refused_in_its_own_call(make_sampler: Maker) -> None:
    """In the next call no other update could help any more."""
    sampler = make_sampler(Stamping(), AnyLength, n_workers=2, on_failure="drop", **LAGGING)
    batches = [sampler.obtain_exact_trajectories(2, agent_update=(1,))]
    with pytest.raises(UsageError, match="cannot replace trajectories of workers that have agents"):
        sampler.obtain_exact_trajectories(2, agent_update=PerWorker([(1,), (2,)]))
    batches += [sampler.obtain_exact_trajectories(2, agent_update=(number,)) for number in (2, 3)]
    assert batches == twins([4, 4, 4])


@pytest.mark.parametrize(
    ("owner", "place"),
    [
        (Call, "complete"),
        (OffByOneSchedule, "complete"),
        (Call, "end"),
        (UpdateStore, "unpublish_old"),
        (OffByOneSchedule, "prefetch"),
        (Stats, "merge"),
    ],
)
@LOCAL
def test_after_an_interrupt_a_call_begins_afresh(
    make_sampler: Maker, monkeypatch: pytest.MonkeyPatch, owner: type, place: str
) -> None:
    """Wherever it comes, so that the same follows."""
    sampler = make_sampler(Stamping(), AnyLength, n_workers=2, **LAGGING)
    batches = obtained(sampler, [("obtain_trajectories", 4)])
    raise_once(monkeypatch, owner, place, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        sampler.obtain_trajectories(4, agent_update=(2,))
    assert [*batches, sampler.salvage()] == twins([4, 4])
    for number, first in ((3, 0), (4, 4)):
        batch = sampler.obtain_trajectories(4, agent_update=(number,))
        assert (batch.agent_version, set(batch.actions.tolist()), batch.indices[0]) == (3, {3}, first)


@pytest.mark.parametrize(
    ("owner", "place"), [(Call, "__init__"), (BatchMaker, "__init__"), (OffByOneSchedule, "begin_call")]
)
@LOCAL
def test_after_an_interrupt_while_a_call_begins_its_version_is_used_up_or_not(
    make_sampler: Maker, monkeypatch: pytest.MonkeyPatch, owner: type, place: str
) -> None:
    """There is nothing in between, such as a batch of the version that was used up from the middle on."""
    sampler = make_sampler(Stamping(), AnyLength, n_workers=2, **LAGGING)
    sampler.obtain_trajectories(4)
    raise_once(monkeypatch, owner, place, KeyboardInterrupt)
    with pytest.raises(KeyboardInterrupt):
        sampler.obtain_trajectories(4, agent_update=(2,))
    before, used_up = sampler.agent_version, owner is not Call
    assert before == 1 + used_up
    batch = sampler.obtain_trajectories(4, agent_update=(3,))
    assert (batch.agent_version, batch.indices[0]) == ((3, 0) if used_up else (1, 4))


@LOCAL
def test_what_is_wrong_before_a_call_begins_changes_nothing(make_sampler: Maker) -> None:
    undisturbed, sampler = (make_sampler(Drawing(), GlobalNoise, n_workers=2, **LAGGING) for _ in range(2))
    expected = obtained(undisturbed, CALLS[:5])
    batches = obtained(sampler, CALLS[:2])
    for wrong in ({"agent_update": 5}, {"reset_options": {"lock": threading.Lock()}}, {"env_update": 5}):
        with pytest.raises((SamplerError, TypeError)):
            sampler.obtain_samples(10, **wrong)
    with pickle.loads(pickle.dumps(sampler)) as again:  # and a copy goes on as well
        for one in (sampler, again):
            assert [*batches, *obtained(one, CALLS[2:5], first=3)] == expected


@pytest.mark.parametrize("n_before", [1, 3, 6])
def test_a_copy_by_pickling_goes_on(make_local: Callable[..., LocalSampler], n_before: int) -> None:
    whole, sampler = (make_local(Drawing(), GlobalNoise, **LAGGING) for _ in range(2))
    batches = obtained(sampler, CALLS[:n_before])
    with pickle.loads(pickle.dumps(sampler)) as copy:
        assert [*batches, *obtained(copy, CALLS[n_before:], n_before + 1)] == obtained(whole)


@pytest.mark.parametrize("mode", ["NEXT_STEP", "DISABLED"])
def test_blocks_of_native_vector_environments(make_local: Callable[..., LocalSampler], mode: str) -> None:
    """They are what they are without a lag, also where an environment resets itself."""
    options: dict[str, Any] = LAGGING | {"worker_class": VecWorker, "worker_args": {"n_envs": 3, "block_size": 7}}
    lagging, other = (make_local(always_zero, Vector(mode), **options | it) for it in ({}, {"staleness": 0}))
    batches, same = ([sampler.obtain_trajectories(9) for _ in range(3)] for sampler in (lagging, other))
    assert (batches[0], batches[2]) == (same[0], same[1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"staleness": 2}, "staleness must be 0 or 1, got 2"),
        ({"staleness": True}, "staleness must be 0 or 1, got True"),
        ({"staleness": "1"}, "staleness must be 0 or 1, got '1'"),
        ({"staleness": np.array([1, 2])}, "staleness must be 0 or 1, got array"),
        ({"order": "arrival"}, 'staleness=1 needs order="index"'),
        ({"observation_filter": RunningNorm()}, "staleness=1 does not support observation_filter"),
    ],
)
def test_arguments_that_do_not_go_together(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        LocalSampler(Stamping(), AnyLength, **{"staleness": 1, **options})


def test_calls_that_cannot_be_had(make_local: Callable[..., LocalSampler], tmp_path: Path) -> None:
    sampler = make_local(Stamping(), AnyLength, **LAGGING)
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: sampler.obtain_fragments(4), r"staleness=1.*use another sampler"),
        (sampler.stream, r"staleness=1.*use another sampler"),
        *(
            (
                partial(evaluate, sampler=sampler, num_trajectories=4, part=part),
                "a sampler with staleness=1 does not support",
            )
            for part in (None, (1, 2))
        ),
        (lambda: sample_to_folder(sampler, tmp_path / "f", n_trajectories=4, shard_size=10), "staleness=0"),
    ]
    for call, words in calls:
        with pytest.raises(UsageError, match=words):
            call()
    assert list(tmp_path.iterdir()) == []
    assert sampler.agent_version == 0


@pytest.fixture
def every_worker_runs_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a complete call wait for each worker's last answer: one that needs long for it would not run ahead."""
    monkeypatch.setattr("streamsampler.samplers.call._PATIENCE", PATIENCE)


AHEAD = pytest.mark.usefixtures("every_worker_runs_ahead")
PROCESSES = on("processes", *SLOW_QUEUES)


class Telling(AnyLength):
    """Records each trajectory that ends, and each timestep."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.ends, self.steps = Records(folder / "ends"), Records(folder / "steps")

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        result = super().step(action)
        self.steps.record("steps")
        if result[2]:
            self.ends.record("ends")
            self.ends.wake()
        return result


@pytest.fixture
def ends(tmp_path: Path) -> Records:
    return Records(tmp_path / "ends")


@pytest.fixture
def env(tmp_path: Path) -> Any:
    return partial(Telling, tmp_path)


def twins(n_calls: list[int]) -> list[Any]:
    """What the calls return where nobody runs ahead."""
    with LocalSampler(Stamping(), AnyLength, **LAGGING) as sampler:
        return [sampler.obtain_trajectories(n, agent_update=(c,)) for c, n in enumerate(n_calls, start=1)]


@AHEAD
@on("processes", *SLOW_QUEUES, *slow("lanes processes"), RAY)
@pytest.mark.parametrize("own", [False, True])
def test_workers_run_all_of_the_next_batch_and_nothing_else(
    make_sampler: Maker, env: Any, ends: Records, own: bool, tmp_path: Path
) -> None:
    """Then the call has nothing left to do. Nothing is run by two workers where each has its own indices."""
    sampler = make_sampler([Stamping(), Stamping()] if own else Stamping(), env, n_workers=2, **LAGGING)
    batches = []
    for number in (1, 2, 3, 4):
        batches.append(sampler.obtain_trajectories(8, agent_update=(number,)))
        ends.wait(8 * (number + 1), PATIENCE)
    assert batches == twins([8] * 4)
    stats = sampler.stats
    if own:
        assert ends.count() == 40
    if own and not make_sampler.side_by_side:
        fates = stats.kept_trajectories, stats.surplus_trajectories, stats.stale_trajectories, stats.abandoned_timesteps
        assert fates == (32, 0, 0, 0)
    sampler.close()
    ran = Records(tmp_path / "steps").count()
    assert sampler.stats.ran_timesteps == ran, "also of what nobody asked for any more"


@AHEAD
@PROCESSES
@pytest.mark.slow
def test_they_run_ahead_as_much_as_the_last_call_needed(make_sampler: Maker, env: Any, ends: Records) -> None:
    sampler = make_sampler(Stamping(), env, n_workers=1, **LAGGING)
    numbers, ran, batches = [8, 8, 3, 9, 9], 0, []
    for number, n in enumerate(numbers, start=1):
        batches.append(sampler.obtain_trajectories(n, agent_update=(number,)))
        ran += max(n, numbers[number - 2] if number > 1 else 0)
        ends.wait(ran + n, PATIENCE)
        assert ends.count() == ran + n
    assert batches == twins(numbers)
    assert sampler.stats.surplus_trajectories + sampler.stats.stale_trajectories == 5


class Endless(Steps):
    """Lasts for ever in one trajectory, whose timesteps it records."""

    def __init__(self, folder: Path, long_seed: int) -> None:
        super().__init__()
        self.records, self.long_seed = Records(folder), long_seed

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        self.length = 10**9 if seed == self.long_seed else 3
        return super().reset(seed=seed)

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        if self.length > 3:
            self.records.record("endless")
            self.records.wake()
            time.sleep(0.001)
        return super().step(action)


@AHEAD
@PROCESSES
@pytest.mark.slow
def test_closing_stops_what_runs_ahead(make_sampler: Maker, tmp_path: Path) -> None:
    """The fixture looks for what is left behind."""
    with LocalSampler(Stamping(), AnyLength, **LAGGING) as local:
        (long_seed,) = local.seeds(1, [2])
    sampler = make_sampler(Stamping(), partial(Endless, tmp_path, long_seed), n_workers=2, **LAGGING)
    assert len(sampler.obtain_trajectories(2)) == 2
    Records(tmp_path).wait(5, PATIENCE)
    sampler.close()


@AHEAD
@PROCESSES
def test_what_was_begun_otherwise_is_not_used(make_sampler: Maker, env: Any, ends: Records) -> None:
    def calls(sampler: Any, n_ends: int) -> list[Any]:
        first = sampler.obtain_trajectories(8)
        ends.wait(n_ends, PATIENCE)
        return [
            first,
            sampler.obtain_trajectories(8, reset_options={"level": 2}),
            sampler.obtain_trajectories(seeds=[5, 7]),
            sampler.obtain_samples(20),
        ]

    sampler = make_sampler(Stamping(), env, n_workers=2, **LAGGING)
    with LocalSampler(Stamping(), AnyLength, **LAGGING) as twin:
        assert calls(sampler, 16) == calls(twin, 0)
    stats = sampler.stats
    assert stats.stale_trajectories + stats.surplus_trajectories >= 8, "one of the first call's may be among the 16"


@AHEAD
@PROCESSES
@pytest.mark.slow
def test_all_workers_die_between_two_calls(make_sampler: Maker, env: Any, ends: Records) -> None:
    sampler = make_sampler(Stamping(), env, n_workers=2, **LAGGING)
    batches = []
    for number in (1, 2, 3):
        batches.append(sampler.obtain_trajectories(8, agent_update=(number,)))
        if number == 2:
            ends.wait(8 * number + 1, PATIENCE)
            for pid in sampler.worker_pids():
                with contextlib.suppress(ProcessLookupError):  # killed before, and not needed since
                    os.kill(pid, signal.SIGKILL)
    assert batches == twins([8] * 3)
    assert sampler.stats.restarts >= 1  # as many as there was work for


@AHEAD
@PROCESSES
def test_an_exception_between_two_calls_is_of_the_next(make_sampler: Maker, tmp_path: Path) -> None:
    # Each time: where a copy succeeds first the failure is forgotten.
    faults = Faults(tmp_path, Fault("raise", version=2, trajectory=1, times=None), seed=SEED)
    sampler = make_sampler(Stamping(), faults.env(AnyLength), n_workers=2, **LAGGING)
    batches = [sampler.obtain_trajectories(8, agent_update=(number,)) for number in (1, 2)]
    faults.wait(1, PATIENCE)
    assert batches == twins([8, 8])
    with pytest.raises(RolloutError, match="in trajectory 1 of agent version 2"):
        sampler.obtain_trajectories(8, agent_update=(3,))
    assert set(sampler.obtain_trajectories(8, agent_update=(4,)).actions.tolist()) == {4}


@AHEAD
@PROCESSES
def test_an_exception_is_found_although_nothing_comes_after_it(
    make_sampler: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The call has read all answers before it waits for the first time."""
    faults = Faults(tmp_path, Fault("raise", version=1, trajectory=4), seed=SEED)
    sampler = make_sampler(Stamping(), faults.env(AnyLength), n_workers=1, **LAGGING)
    sampler.obtain_trajectories(4)
    with monkeypatch.context() as patch:
        wait_for_answers(patch, sampler)
        with pytest.raises(RolloutError, match="in trajectory 4 of agent version 1"):
            sampler.obtain_trajectories(4)
    assert len(sampler.obtain_trajectories(4)) == 4


@AHEAD
@PROCESSES
def test_an_interrupt_while_the_call_takes_over(
    make_sampler: Maker, env: Any, ends: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was finished before the call can be salvaged as well."""
    sampler = make_sampler(Stamping(), env, n_workers=1, **LAGGING)
    batches = [sampler.obtain_trajectories(4, agent_update=(1,))]
    ends.wait(8, PATIENCE)
    with monkeypatch.context() as patch:
        wait_for_answers(patch, sampler)
        raise_once(patch, Scheduler, "_decide", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_trajectories(4, agent_update=(2,))
    assert [*batches, sampler.salvage()] == twins([4, 4])


@AHEAD
@PROCESSES
def test_a_refusal_counts_although_the_batch_is_there(
    make_sampler: Maker, env: Any, ends: Records, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampler = make_sampler(Stamping(), env, n_workers=1, fingerprint="error", **LAGGING)
    sampler.obtain_trajectories(4, agent_update=(1,))
    ends.wait(8, PATIENCE)
    with monkeypatch.context() as patch:
        wait_for_answers(patch, sampler)
        receive = Scheduler._receive
        patch.setattr(Scheduler, "_receive", lambda scheduler, event: receive_otherwise(scheduler, event, receive))
        with pytest.raises(NotReproducibleError, match="computes with other kernels"):
            sampler.obtain_trajectories(4, agent_update=(2,))


def receive_otherwise(scheduler: Scheduler, event: Any, receive: Callable[[Scheduler, Any], None]) -> None:
    """Receive an event as if a worker had begun to compute otherwise."""
    if scheduler._is_open:
        scheduler._record_fingerprint(0, Fingerprint("numpy=aa", "here"))
        scheduler._record_fingerprint(1, Fingerprint("numpy=bb", "there"))
    receive(scheduler, event)


def wait_for_answers(monkeypatch: pytest.MonkeyPatch, sampler: Any) -> None:
    """Let the next call find all that worker 0 was asked for."""
    session = sampler._life.session
    wait = session.engine.wait

    def wait_for_all(timeout: float | None) -> list[Any]:
        assert timeout == 0.0, "the call would wait for ever"
        events = wait(None)
        while len(events) < len(session.scheduler.workers[0].side.unanswered):
            events += wait(None)
        return events

    monkeypatch.setattr(session.engine, "wait", wait_for_all)


@AHEAD
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), MemoryError(), SamplerError("no handle")])
@pytest.mark.parametrize("place", ["prefetch", "send"])
def test_an_error_while_the_next_batch_is_begun(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: Exception, place: str
) -> None:
    """It costs neither the batch that is complete, nor the next one, also where a ticket was not sent."""
    with MultiprocessingSampler(Stamping(), AnyLength, n_workers=2, **LAGGING) as sampler:
        batches = [sampler.obtain_trajectories(4, agent_update=(1,))]
        engine, prefetch = sampler._life.session.engine, Scheduler.prefetch

        def fail(*given: Any) -> Any:
            raise_once(monkeypatch, engine, "send", error)
            return prefetch(*given)

        with monkeypatch.context() as patch:
            if place == "send":
                patch.setattr(Scheduler, "prefetch", fail)
            else:
                raise_once(patch, Scheduler, place, error)
            batches.append(sampler.obtain_trajectories(4, agent_update=(2,)))
        batches += [sampler.obtain_trajectories(4, agent_update=(number,)) for number in (3, 4)]
    assert batches == twins([4] * 4)
    assert (
        f"could not start on the next batch, so the next call samples all of it: {type(error).__name__}" in caplog.text
    )


@AHEAD
def test_an_interrupt_while_the_next_batch_is_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the batch that is complete is lost."""
    with MultiprocessingSampler(Stamping(), AnyLength, n_workers=2, **LAGGING) as sampler:
        batches = [sampler.obtain_trajectories(4, agent_update=(1,))]
        raise_once(monkeypatch, Scheduler, "prefetch", KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            sampler.obtain_trajectories(4, agent_update=(2,))
        salvaged = sampler.salvage()
        assert salvaged is not None
        assert [*batches, salvaged] == twins([4, 4])
        afresh = sampler.obtain_trajectories(4, agent_update=(3,))
        assert (afresh.agent_version, set(afresh.actions.tolist())) == (3, {3})
