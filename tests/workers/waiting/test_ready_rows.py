"""Agents that have `get_actions` alone: asked for whichever trajectories in flight are ready."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import LocalSampler, MultiprocessingSampler, RolloutError, VecWorker, timed
from streamsampler.agents.draws import Draws
from streamsampler.filters import RunningNorm
from streamsampler.workers.waiting.ready_rows import ReadyRows
from streamsampler.workers.waiting.turns import FlightTotals
from tests.tiers import mostly_slow
from tests.workers.waiting.envs import BreaksLater, Game, Waits
from tests.workers.waiting.envs import Draws as DrawingAgent
from tests.workers.waiting.test_async_worker import SEED, make

WEIGHTS = np.array([[1.0, -2.0, 0.5], [-1.0, 0.3, 2.0], [0.2, 0.7, -1.0]], np.float32)


class Rows:
    """Chooses by a matrix product."""

    row_independent = True

    def __init__(self) -> None:
        self.weights = WEIGHTS

    def get_actions(self, observations: Any) -> Any:
        scores = observations @ self.weights
        return scores.argmax(axis=1), {"scores": scores, "value": scores[:, 0]}

    def get_value(self, observation: Any) -> float:
        return float(observation[1])

    def set_param_values(self, values: Any) -> None:
        self.weights = np.array(values["weights"], np.float32)


class DrawingRows(Rows):
    """Draws both kinds of numbers."""

    def get_actions(self, observations: Any, *, draws: Any, seeds: Any) -> Any:  # type: ignore[override]
        with timed("scoring"):
            scores = observations @ self.weights + draws.normal(3)
        infos = {"scores": scores, "drawn": draws.random(), "seed": seeds, "nested": {"first": scores[:, :1]}}
        return scores.argmax(axis=1).tolist(), infos


class RowsLater(DrawingRows):
    """Is a service, which answers several batches at the same time; draws before and after a wait."""

    largest = at_once = most_at_once = 0

    async def get_actions(self, observations: Any, *, draws: Any, seeds: Any) -> Any:  # type: ignore[override]
        cls = type(self)
        cls.largest = max(cls.largest, len(observations))
        cls.at_once += 1
        cls.most_at_once = max(cls.most_at_once, cls.at_once)
        noise = draws.normal(3)
        for _ in range(len(observations) % 3 + 1):
            await asyncio.sleep(0)
        cls.at_once -= 1
        scores = (observations[:, :, None] * self.weights).sum(axis=1) + noise
        infos = {"scores": scores, "drawn": draws.random(), "seed": seeds, "nested": {"first": scores[:, :1]}}
        return scores.argmax(axis=1), infos


def in_lanes(agent: Any, env: Any = Game, **options: Any) -> Any:
    """Return a sampler that asks for 16 rows at a time."""
    return LocalSampler(agent, env, seed=SEED, worker_class=VecWorker, worker_args={"n_envs": 16}, **options)


@pytest.mark.parametrize("agent", mostly_slow([DrawingRows(), Rows()]))
@pytest.mark.parametrize("in_flight", mostly_slow([7, 1, 20]))
@pytest.mark.parametrize("given", [{}, {"observation_filter": RunningNorm()}], ids=["", "filtered"])
@pytest.mark.parametrize(("kind", "n_workers"), mostly_slow([(LocalSampler, 1), (MultiprocessingSampler, 2)]))
def test_batches_are_those_of_lanes(kind: Any, n_workers: int, given: Any, in_flight: int, agent: Any) -> None:
    ready = make(kind, agent, Waits, in_flight=in_flight, n_workers=n_workers, max_episode_length=9, **given)
    with ready as sampler, in_lanes(agent, max_episode_length=9, **given) as expected:
        for call in range(3):
            update = {"weights": WEIGHTS + np.float32(0.5 * call)} if call else None
            assert sampler.obtain_trajectories(30, agent_update=update) == expected.obtain_trajectories(
                30, agent_update=update
            )
            assert sampler.obtain_samples(80) == expected.obtain_samples(80)


@pytest.mark.parametrize("n_workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_service_gives_the_same_batches_whoever_is_ready(n_workers: int) -> None:
    batches = []
    kind: Any = LocalSampler if n_workers == 1 else MultiprocessingSampler
    for in_flight in (1, 7, 20):
        with make(kind, RowsLater(), Waits, in_flight=in_flight, n_workers=n_workers) as sampler:
            batches.append([sampler.obtain_trajectories(40), sampler.obtain_samples(100)])
    assert batches[0] == batches[1] == batches[2]
    assert len(set(batches[0][0].agent_infos["drawn"].tolist())) == batches[0][0].n_timesteps


class Full(Rows):
    """Notes how many rows it gets."""

    def get_actions(self, observations: Any) -> Any:
        n = len(observations)
        return np.zeros(n, np.int64), {"n": np.full(n, n)}


@pytest.mark.parametrize("in_flight", [1, 20])
def test_batches_have_one_size_where_nothing_is_awaited(in_flight: int) -> None:
    with make(LocalSampler, Full(), Waits, in_flight=in_flight) as sampler:
        assert set(sampler.obtain_trajectories(40).agent_infos["n"].tolist()) == {16}


class Counting(RowsLater):
    """Counts rows."""


class CountingBatches(RowsLater):
    """Counts batches."""


def test_a_service_gets_several_rows_and_answers_several_batches_at_the_same_time() -> None:
    with make(LocalSampler, Counting(), Game, in_flight=20) as sampler:
        sampler.obtain_trajectories(60)
    assert Counting.largest == 20
    with make(LocalSampler, CountingBatches(), Waits, in_flight=20) as sampler:
        sampler.obtain_trajectories(60)
    assert CountingBatches.most_at_once > 1


def test_on_threads() -> None:
    arguments = {"in_flight": 7, "threads": True}
    with LocalSampler(DrawingRows(), Game, seed=SEED, worker_args=arguments) as sampler:
        assert sampler.obtain_trajectories(30) == in_lanes(DrawingRows()).obtain_trajectories(30)


class BreakingRows(DrawingRows):
    """Raises where a row is of some trajectories."""

    def get_actions(self, observations: Any, *, draws: Any, seeds: Any) -> Any:  # type: ignore[override]
        drawn = draws.random()
        if (seeds[seeds > 99] % 7 == 0).any():  # the seeds of trajectories are large
            raise ValueError("broken")
        _, infos = super().get_actions(observations, draws=draws, seeds=seeds)
        return np.zeros(len(observations), np.int64), {**infos, "first": drawn}


class BreakingService(BreakingRows):
    """Does so in a service, after a wait."""

    async def get_actions(self, observations: Any, *, draws: Any, seeds: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        return super().get_actions(observations, draws=draws, seeds=seeds)


def test_whose_rows_raise_is_left_out_and_others_are_what_they_would_be() -> None:
    options: dict[str, Any] = {"on_failure": "drop"}
    batches = []
    for in_flight in (1, 7, 20):
        with make(LocalSampler, BreakingRows(), Waits, in_flight=in_flight, **options) as sampler:
            batches.append([sampler.obtain_trajectories(40) for _ in range(2)])
            assert sampler.stats.dropped
    assert batches[0] == batches[1] == batches[2]
    assert batches[0][0].indices.tolist() != list(range(40))


@pytest.mark.parametrize("agent", mostly_slow([BreakingRows(), BreakingService()]), ids=["plain", "service"])
def test_what_raises_ends_the_call(agent: Any) -> None:
    found: list[tuple[Any, ...]] = []
    for in_flight in (1, 20):
        with make(LocalSampler, agent, Waits, in_flight=in_flight) as sampler:
            for _ in range(2):  # it is usable again
                with pytest.raises(RolloutError, match="broken") as raised:
                    sampler.obtain_trajectories(40)
            found.append((raised.value.phase, type(raised.value.__cause__)))
            if isinstance(agent, BreakingRows) and not isinstance(agent, BreakingService):
                found[-1] += (raised.value.trajectory,)
    assert found[0] == found[1]


class Wrong(Rows):
    """Returns something else."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer

    def get_actions(self, observations: Any) -> Any:
        return self.answer(len(observations))


class WrongLater(Wrong):
    """Does so in a service."""

    async def get_actions(self, observations: Any) -> Any:
        return super().get_actions(observations)


WRONG: list[Any] = [
    (lambda n: np.zeros(n, np.int64), r"get_actions must return a tuple \(actions, agent_infos\)"),
    (lambda n: (np.zeros(n + 1, np.int64), {}), "get_actions must return an action for each of"),
    (lambda n: (np.zeros(n, np.int64), {"x": np.zeros(n + 1)}), r"agent_infos\['x'\] should have one row for each of"),
    (lambda n: (np.full(n, 7), {}), "action is outside its space"),
]


@pytest.mark.parametrize(("answer", "message"), WRONG)
@pytest.mark.parametrize("kind", [Wrong, WrongLater])
def test_wrong_answers(kind: Any, answer: Any, message: str) -> None:
    with make(LocalSampler, kind(answer), Waits) as sampler, pytest.raises(RolloutError, match=message):
        sampler.obtain_trajectories(9)


class Placed(Rows):
    """Sees where in the batch a row is."""

    def get_actions(self, observations: Any) -> Any:
        return np.arange(len(observations)) % 3, {}


class Mixed(Rows):
    """Sees other rows."""

    def get_actions(self, observations: Any) -> Any:
        sums = np.full(len(observations), observations.sum())
        return (sums > 0).astype(np.int64), {"sum": sums}


class Silent(Rows):
    """Does not say that its rows are independent."""

    row_independent = False


class Told(Rows):
    """Remembers by row."""

    def get_actions(self, observations: Any, *, starts: Any) -> Any:  # type: ignore[override]
        return np.zeros(len(starts), np.int64), {}


class Masked(Rows):
    """Is told which rows begin by its reset."""

    def reset(self, do_resets: Any) -> None:
        pass


@pytest.mark.parametrize(
    ("agent", "message"),
    [
        (Placed(), "changed with its place in the batch"),
        (Mixed(), "row .* changed when other rows had other observations"),
        (Silent(), "does not say row_independent = True"),
        (Told(), "it takes starts, as agents with a memory of each row do"),
        (Masked(), "it takes do_resets, as agents with a memory"),
    ],
)
def test_agents_whose_rows_depend_on_more_are_refused(agent: Any, message: str) -> None:
    for _ in range(2):
        with make(LocalSampler, agent, Waits) as sampler, pytest.raises(RolloutError, match=message):
            sampler.obtain_trajectories(3)


def test_fragments_need_get_action() -> None:
    with make(LocalSampler, Rows(), Waits) as sampler:
        with pytest.raises(RolloutError, match="get_actions alone, but fragments of environments that wait need"):
            sampler.obtain_fragments(5, n_envs=3)
        assert sampler.obtain_trajectories(3).n_trajectories == 3


class Allowing(Game):
    """Allows two of its actions, in turn."""

    def reset(self, **arguments: Any) -> Any:
        observation, info = super().reset(**arguments)
        return observation, {**info, "action_mask": self._mask()}

    def step(self, action: Any) -> Any:
        *result, info = super().step(action)
        return *result, {**info, "action_mask": self._mask()}

    def _mask(self) -> Any:
        return np.arange(3) != self.t % 3


class AllowingLater(Waits, Allowing):
    """Waits besides."""


class MaskingRows(Rows):
    """Takes masks."""

    def get_actions(self, observations: Any, *, action_masks: Any) -> Any:  # type: ignore[override]
        scores = np.where(action_masks, observations @ self.weights, -np.inf)
        return scores.argmax(axis=1), {"allowed": action_masks}


def test_masks_reach_rows() -> None:
    with make(LocalSampler, MaskingRows(), AllowingLater) as sampler, in_lanes(MaskingRows(), Allowing) as expected:
        batch = sampler.obtain_trajectories(30)
        assert batch == expected.obtain_trajectories(30)
        assert not batch.agent_infos["allowed"].all()


class Several(Game):
    """Shows a dict and takes a tuple."""

    observation_space: Any = spaces.Dict({"a": spaces.Box(-1, 1, (3,), np.float32), "b": spaces.Discrete(20)})
    action_space: Any = spaces.Tuple((spaces.Discrete(3), spaces.Box(-1, 1, (2,), np.float32)))

    def reset(self, **arguments: Any) -> Any:
        observation, info = super().reset(**arguments)
        return {"a": observation, "b": self.t}, info

    def step(self, action: Any) -> Any:
        observation, *result = super().step(action[0])
        return {"a": observation, "b": self.t}, *result


class SeveralLater(Waits, Several):
    """Waits besides."""


class SeveralRows(Rows):
    """Writes into what it gets, and uses the same arrays for all answers."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers, self.seen = np.zeros((16, 2), np.float32), np.zeros((16, 3), np.float32)

    def get_actions(self, observations: Any) -> Any:
        self.numbers[:] = np.tanh(observations["a"][:, :2])
        self.seen[:] = observations["a"]
        observations["a"][:] = 0.0
        return (observations["b"] % 3, self.numbers), {"seen": self.seen}


def test_trees_are_the_trajectorys_own() -> None:
    """Three batches are asked for before the first one is recorded."""
    ready = make(LocalSampler, SeveralRows(), Several, in_flight=40)
    with ready as sampler, in_lanes(SeveralRows(), Several) as expected:
        batch = sampler.obtain_trajectories(80)
        assert batch == expected.obtain_trajectories(80)
        assert np.array_equal(batch.agent_infos["seen"], batch.observations["a"])


def test_environments_that_raise_leave_other_rows_alone() -> None:
    options: dict[str, Any] = {"on_failure": "drop"}
    batches = []
    for in_flight in (1, 20):
        with make(LocalSampler, DrawingRows(), BreaksLater, in_flight=in_flight, **options) as sampler:
            batches.append(sampler.obtain_trajectories(40))
    assert batches[0] == batches[1]


class Never(RowsLater):
    """Answers nothing, and notes that it was cancelled, and could clean up."""

    n_cancelled = n_closed = 0

    async def get_actions(self, observations: Any, *, draws: Any, seeds: Any) -> Any:  # type: ignore[override]
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            type(self).n_cancelled += 1
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            type(self).n_closed += 1
            raise


def test_a_service_that_does_not_answer_is_cancelled() -> None:
    Never.n_cancelled = Never.n_closed = 0
    with (
        make(LocalSampler, Never(), Game, trajectory_timeout=0.05, check=None) as sampler,
        pytest.raises(RolloutError, match=r"get_actions of Never, at timestep 0, exceeded trajectory_timeout=0\.05"),
    ):
        sampler.obtain_trajectories(3)
    assert Never.n_cancelled >= Never.n_closed > 0  # the last time the ticket has failed, and it is cancelled again


class Forgetful(Never):
    """Does not answer the first request."""

    n_closed_before: ClassVar[list[int]] = []  # of each request, how many others had been closed

    async def get_actions(self, observations: Any, *, draws: Any, seeds: Any) -> Any:  # type: ignore[override]
        self.n_closed_before.append(self.n_closed)
        if len(self.n_closed_before) == 1:
            await super().get_actions(observations, draws=draws, seeds=seeds)
        return await RowsLater.get_actions(self, observations, draws=draws, seeds=seeds)


def test_a_request_that_no_trajectory_needs_is_cancelled() -> None:
    Forgetful.n_cancelled = Forgetful.n_closed = 0
    Forgetful.n_closed_before.clear()
    forgetful = make(LocalSampler, Forgetful(), Game, trajectory_timeout=0.3, check=None)
    with forgetful as sampler, make(LocalSampler, RowsLater(), Game) as expected:
        assert sampler.obtain_trajectories(12) == expected.obtain_trajectories(12)
        assert sampler.stats.timed_out >= 7
        assert Forgetful.n_closed_before[3] == Forgetful.n_cancelled == 1  # while others of its ticket went on


@pytest.mark.slow
def test_a_killed_worker_changes_nothing() -> None:
    with (
        make(MultiprocessingSampler, DrawingRows(), Waits, n_workers=2) as sampler,
        in_lanes(DrawingRows()) as expected,
    ):
        stream = sampler.stream(n_trajectories=200)
        batches = [next(stream)]
        os.kill(sampler.worker_pids()[0], signal.SIGKILL)
        batches += list(stream)
        assert type(batches[0]).concatenate(batches) == expected.obtain_trajectories(200)


def test_agents_and_environments_are_replaced() -> None:
    with make(LocalSampler, DrawingAgent(), Waits) as sampler, in_lanes(Rows()) as expected:
        assert sampler.obtain_trajectories(5) == LocalSampler(DrawingAgent(), Game, seed=SEED).obtain_trajectories(5)
        expected.obtain_trajectories(5)
        for arguments in ({"agent_update": DrawingRows()}, {}):
            assert sampler.obtain_trajectories(9, **arguments) == expected.obtain_trajectories(9, **arguments)
        both = {"agent_update": SeveralRows()}
        batch = sampler.obtain_trajectories(9, env_update=SeveralLater, **both)
        assert batch == expected.obtain_trajectories(9, env_update=Several, **both)
        assert "value" in sampler.obtain_trajectories(9, env_update=Waits, agent_update=DrawingAgent()).agent_infos


class Seeing:
    """Has the agent in its context."""

    def on_trajectory_start(self, context: Any) -> None:
        context.metrics["agent"] = type(context.agent).__name__


def test_hooks_and_timers() -> None:
    with make(LocalSampler, DrawingRows(), Waits, hooks=Seeing()) as sampler:
        batch = sampler.obtain_trajectories(20)
        assert set(batch.episode_infos["agent"].tolist()) == {"DrawingRows"}
        found = {"/".join(path): it.count for path, it in batch.stats.timers().walk() if it.count}
        assert found["agent/scoring"] > 0
        again = sampler.replay(1, 3, recorded=batch)
        assert again.same


def ready_rows(n_slots: int) -> ReadyRows:
    """Return what asks a service, with trajectories in some slots whose seeds are the slots' numbers."""
    worker: Any = SimpleNamespace(warn_once=print)
    ready = ReadyRows(worker, cast("Any", None), FlightTotals())
    ready.use(RowsLater())
    for number in range(n_slots):
        ready.of_slot(number, (Game.observation_space, Game.action_space))
        ready.begin(number, number)
    return ready


def test_a_request_draws_nothing_for_trajectories_that_are_there_no_more() -> None:
    """Otherwise it would take numbers of those that have begun in their slots since."""
    ready = ready_rows(2)
    ready.begin(0, 7)
    of_request = ready.drawn(np.arange(2), [1, 1], lambda rows: rows.normal(3))
    assert of_request.shape == (2, 3)
    assert not of_request[0].any()
    assert (of_request[1] == Draws.of([1]).normal(3)[0]).all()
    assert ready.drawn(np.arange(1), [2], lambda rows: rows.normal(3)).tolist() == Draws.of([7]).normal(3).tolist()


def test_requests_may_draw_on_threads() -> None:
    ready, n_slots, n = ready_rows(40), 40, 200
    together = Barrier(8)

    def draw(slots: range) -> list[Any]:
        together.wait()
        return [[ready.drawn(np.array([slot]), [1], lambda rows: rows.random())[0] for _ in range(n)] for slot in slots]

    with ThreadPoolExecutor(8) as threads:
        found = [each for of_thread in threads.map(draw, (range(i, i + 5) for i in range(0, n_slots, 5)))
                 for each in of_thread]  # fmt: skip
    for slot, numbers in enumerate(found):
        stream = Draws.of([slot])
        assert numbers == [stream.random()[0] for _ in range(n)]


class Refuses(RowsLater):
    """Returns one action for several observations; counts how often it is loaded."""

    n_loaded = 0

    def __setstate__(self, state: Any) -> None:
        Refuses.n_loaded += 1
        self.__dict__.update(state)

    async def get_actions(self, observations: Any, *, draws: Any, seeds: Any) -> Any:  # type: ignore[override]
        await asyncio.sleep(0)
        if len(observations) > 3:
            return np.zeros(1, np.int64), {}
        return await super().get_actions(observations, draws=draws, seeds=seeds)


def test_the_agent_is_replaced_once_for_all_trajectories_of_a_request_that_fails() -> None:
    options: Any = {"on_failure": "drop", "check": None, "in_flight": 6}
    with make(LocalSampler, Refuses(), Game, **options) as sampler:
        before = Refuses.n_loaded
        with pytest.raises(RolloutError, match="100 trajectories failed and 0 did not"):
            sampler.obtain_trajectories(12)
        assert Refuses.n_loaded - before < 50


class WaitsInSecret(Rows):
    """Returns what is to be awaited, and does not say so."""

    def get_actions(self, observations: Any) -> Any:
        async def chosen() -> Any:
            return super(WaitsInSecret, self).get_actions(observations)

        return chosen()


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")  # of the probe
def test_what_returns_something_to_be_awaited_is_refused() -> None:
    with (
        make(LocalSampler, WaitsInSecret(), Waits) as sampler,
        pytest.raises(RolloutError, match="get_actions of WaitsInSecret returned an awaitable"),
    ):
        sampler.obtain_trajectories(2)


class Swallows(RowsLater):
    """Goes on after it was cancelled."""

    async def get_actions(self, observations: Any, *, draws: Any, seeds: Any) -> Any:  # type: ignore[override]
        while True:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()


@pytest.mark.slow
def test_a_request_that_goes_on_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with (
        make(LocalSampler, Swallows(), Game, trajectory_timeout=0.05, check=None) as sampler,
        pytest.raises(RolloutError),
    ):
        sampler.obtain_trajectories(3)
    assert "a request of get_actions was cancelled, but still runs" in caplog.text
