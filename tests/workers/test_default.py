"""The default worker's loop: what its fast ways must not let through, what it tells, leaves out and lets override."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import DefaultWorker, LocalSampler, VecWorker, Worker
from streamsampler.agents.base import as_agent
from streamsampler.environments.updates import as_env_update
from streamsampler.errors import ActionError, ObservationError, UsageError
from streamsampler.protocol.messages import Phase, Ticket
from streamsampler.testing.scripted import ScriptedAgent, ScriptedEnv
from streamsampler.workers.seams import refuse_ignored_seams
from streamsampler.workers.single import SingleDriver
from tests.workers.contexts import context_of, new_board


class Env(gymnasium.Env):
    """`length` quick steps a trajectory; observation and reward number `oddity[0]`, counted over all, are odd."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int = 100, oddity: tuple[int, Any, Any] = (-1, None, None), on_step: Any = None) -> None:
        self.length, self.oddity, self.on_step = length, oddity, on_step
        self.t = self.total = 0
        self.even: Any = None

    def _observation(self) -> Any:
        if self.total == self.oddity[0]:
            return self.oddity[1]
        return np.full(2, self.t % 9, np.float32) if self.even is None else self.even

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._observation(), {}

    def step(self, action):
        self.t += 1
        self.total += 1
        if self.on_step is not None:
            self.on_step(self.total)
        reward = self.oddity[2] if self.total == self.oddity[0] else float(self.t)
        return self._observation(), reward, self.t == self.length, False, {}


class Actions:
    """Acts as `odd` at its n-th action, and with 1 otherwise."""

    def __init__(self, at: int = -1, odd: Any = None) -> None:
        self.at, self.odd, self.n = at, odd, 0

    def get_action(self, _observation):
        self.n += 1
        return (self.odd if self.n - 1 == self.at else 1), {}


def worker_of(env: Any, agent: Any = None, kind: type[DefaultWorker] = DefaultWorker, **fields: Any) -> Any:
    board = new_board()
    worker = kind(context_of(board, **fields))
    worker.update_env(as_env_update(env))
    # Past the copy that an update makes: the tests look at this very one.
    worker._env = env
    worker.update_agent(as_agent(agent or Actions()))
    board.abandon_older(1)
    board.lower_flag(0)
    return worker, board


def run(worker: DefaultWorker, n: int, first: int = 0, version: int = 1) -> Any:
    return worker.rollout(Ticket(version, range(first, first + n)), [0] * n)


@pytest.mark.parametrize("at", [1, 64, 65, 399])
@pytest.mark.parametrize("odd", [[8.0, 8.0], np.full(2, 8.0), np.full(2, 8, ">f4")], ids=["list", "float64", "swapped"])
def test_an_odd_observation_anywhere_is_converted(odd, at):
    worker, _ = worker_of(Env(oddity=(at, odd, 0.5)))
    rollouts = run(worker, 4).rollouts
    expected = np.repeat([[t % 9] for t in range(100)] * 4, 2, axis=1)
    expected[at] = 8
    np.testing.assert_array_equal(rollouts.observations, expected)
    assert rollouts.rewards[at - 1] == 0.5
    assert rollouts.observations.dtype == np.float32


@pytest.mark.parametrize("at", [0, 1, 63, 64, 65, 250, 400], ids=str)
@pytest.mark.parametrize("shape", [(3, 2), (6,), (2, 3, 1), (5,)], ids=str)
def test_another_shape_is_refused_wherever_it_comes_also_with_as_many_numbers(shape, at):
    env = Env(oddity=(at, np.zeros(shape, np.float32), 1.0))
    env.observation_space = gymnasium.spaces.Box(-9, 9, (2, 3), np.float32)
    env.even = np.zeros((2, 3), np.float32)

    def act(observation: Any) -> int:
        assert observation.shape == (2, 3), "the agent is not blamed"
        return 1

    worker, _ = worker_of(env, act)
    with pytest.raises(ObservationError) as caught:
        run(worker, 4, first=10)
    assert f"has the shape {shape}, but its space has the shape (2, 3)" in str(caught.value)
    # Number 400 is the last trajectory's final one.
    trajectory, timestep = (3, 100) if at == 400 else divmod(at, 100)
    assert str(caught.value).endswith(f"at timestep {timestep} of its trajectory")
    assert (worker.trajectory, worker.phase) == (10 + trajectory, Phase.RECORDING)


def test_wrong_shapes_that_make_up_for_each_other_are_refused():
    """One value too many and then one too few would shift what is between them."""
    env = Env()
    env._observation = lambda: np.zeros({70: 3, 71: 1}.get(env.total, 2), np.float32)
    worker, _ = worker_of(env)
    with pytest.raises(ObservationError, match=r"\(3,\).*\(2,\).*timestep 70 of"):
        run(worker, 1)


@pytest.mark.parametrize("at", [0, 70, 163])
@pytest.mark.parametrize("odd", [np.int64(0), np.uint8(0), False, np.array(0)])
def test_actions_of_any_integer_kind_are_recorded(odd, at):
    worker, _ = worker_of(Env(), Actions(at, odd))
    actions = run(worker, 2).rollouts.actions
    assert np.flatnonzero(actions == 0).tolist() == [at]
    assert actions.dtype == np.int64


@pytest.mark.parametrize("odd", [2, -1, 2**70, 0.5, "left"])
def test_a_wrong_action_is_an_error_that_names_its_trajectory(odd):
    worker, _ = worker_of(Env(), Actions(170, odd))
    with pytest.raises(ActionError):
        run(worker, 3, first=5)
    assert (worker.trajectory, worker.phase) == (6, Phase.ACTION)


@pytest.mark.parametrize(
    ("reset", "what"), [(np.zeros(2, np.float32), "ndarray"), (None, "NoneType"), ((1, 2, 3), "tuple of 3")]
)
def test_a_reset_of_another_form_is_told(reset, what):
    env = Env()
    env.reset = lambda **_: reset
    worker, _ = worker_of(env)
    with pytest.raises(UsageError, match=what):
        run(worker, 1)
    assert worker.phase == Phase.RESET


class Seamed(DefaultWorker):
    """Overrides a method with itself, so that its loop calls all of them."""

    def end_trajectory(self, context: Any) -> None:
        super().end_trajectory(context)


KINDS = [DefaultWorker, Seamed]


@pytest.mark.parametrize("limit", [1, 63, 64, 65, 99, 100, 101])
def test_a_limit_truncates_at_its_timestep(limit):
    rollouts = run(worker_of(Env(), max_episode_length=limit)[0], 3).rollouts
    assert rollouts.lengths.tolist() == [min(limit, 100)] * 3
    assert rollouts.truncated.tolist() == [limit <= 100] * 3
    assert rollouts.terminated.tolist() == [limit >= 100] * 3


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("at", [1, 64, 150])
def test_a_newer_version_ends_the_rollout_within_its_timestep(kind, at, monkeypatch):
    """What was abandoned took its time, also the timesteps in between those that are timed."""
    now = 0.0
    board: Any = None

    def on_step(total):
        nonlocal now
        now += 0.125
        if total == at:
            board.abandon_older(2)

    monkeypatch.setattr("streamsampler.workers.single.perf_counter", lambda: now)
    env = Env(length=90, on_step=on_step)
    worker, board = worker_of(env, kind=kind)
    outcome = run(worker, 1000)
    assert outcome.rollouts is None
    assert env.total == at
    assert outcome.n_trajectories * 90 + outcome.abandoned_timesteps == worker.ran_timesteps == at
    assert (outcome.n_trajectories, outcome.n_abandoned) == (at // 90, 1)
    assert sum(outcome.seconds) == pytest.approx(at * 0.125)
    outcome = run(worker, 1, version=2)
    assert (outcome.n_trajectories, outcome.n_timesteps) == (1, 90)


@pytest.mark.parametrize("limit", [None, 70])
def test_progress_is_exact_for_who_watches_with_acting_and_stepping_in_each_timestep(limit):
    seen: list[Any] = []
    board: Any = None

    class Watched:
        def get_action(self, _observation):
            seen.append(board.progress(0))
            return 1, {}

    def on_step(total):
        seen.append(board.progress(0))
        if total == 120:
            board.request_progress(0)

    worker, board = worker_of(Env(on_step=on_step), Watched(), max_episode_length=limit)
    assert run(worker, 2, first=7).n_timesteps == 2 * (limit or 100)
    watched = seen[2 * 120 :]  # the flag is seen after a timestep
    assert [each.phase for each in watched] == [Phase.ACTION, Phase.STEP] * (len(watched) // 2)
    timesteps = [each.timesteps for each in seen]
    assert timesteps[2 * 120 + 1 :: 2] == list(range(120, 2 * (limit or 100)))
    # Without a watcher, at most 64 timesteps behind.
    assert all(total - 64 <= found <= total for total, found in enumerate(timesteps[1::2]))
    assert seen[-1].trajectory == 8


@pytest.mark.parametrize("kind", KINDS)
def test_times_are_measured_and_the_phase_stays_what_it_was(kind):
    worker, board = worker_of(Env(), kind=kind)
    assert all(seconds > 0 for seconds in run(worker, 20).seconds[:3])
    worker._agent.get_action = lambda _observation: 3
    with pytest.raises(UsageError, match=r"get_action must return \(action, agent_info\)"):
        run(worker, 1)
    assert worker.phase == board.progress(0).phase == Phase.ACTION


class Clock:
    """A second for each step; at two steps the environment raises, and to rebuild it takes 7 seconds."""

    def __init__(self, monkeypatch, fails_at: tuple[int, ...]) -> None:
        self.now, self.fails_at, self.rebuilt = 0.0, fails_at, list[int]()
        for module in ("single", "finishing"):
            monkeypatch.setattr(f"streamsampler.workers.{module}.perf_counter", lambda: self.now)
        self.env = Env(on_step=self.on_step)
        self.worker, self.board = worker_of(self.env, drop_unless=lambda kinds: False, rebuild=self.rebuild)

    def on_step(self, total: int) -> None:
        self.now += 1.0
        if total in self.fails_at:
            raise OSError("the arm is stuck")

    def rebuild(self) -> None:
        self.now += 7.0
        self.rebuilt.append(self.env.total)


def test_what_is_left_out_takes_time_too(monkeypatch):
    """Tickets are sized by it: if only what came after the last failure counted, they would grow without end."""
    clock = Clock(monkeypatch, fails_at=(150, 380))
    outcome = run(clock.worker, 6)
    assert [position for position, *_ in outcome.dropped] == [1, 4]
    assert clock.rebuilt == [150, 380]
    assert clock.env.total == 480
    assert outcome.seconds[0] == 14.0
    assert sum(outcome.seconds) == pytest.approx(480 + 14)

    def reset(**_: Any) -> Any:
        clock.now += 3.0
        raise OSError("the arm is stuck")

    clock.env.reset = reset
    outcome = run(clock.worker, 4)
    assert (len(outcome.dropped), outcome.seconds[:3]) == (4, (4 * (3.0 + 7.0), 0.0, 0.0))


def test_what_raised_when_nobody_wanted_it_any_more_is_made_anew_for_who_comes_next(monkeypatch):
    """Or it would depend on the time what the next version's trajectories are run in."""
    clock = Clock(monkeypatch, fails_at=(150,))

    def on_step(total):
        if total == 150:
            clock.board.abandon_older(2)  # from here on nothing can be loaded that belongs to this version
        clock.on_step(total)

    clock.env.on_step = on_step
    outcome = run(clock.worker, 3)
    assert outcome.rollouts is None
    assert (outcome.n_trajectories, outcome.dropped, clock.rebuilt) == (1, (), [])
    for first in (0, 3):
        assert run(clock.worker, 3, first, version=2).n_trajectories == 3
        assert clock.rebuilt == [150]


def test_an_error_that_is_no_trajectorys_is_raised(monkeypatch):
    """There is no telling which one to leave out: another cut into tickets would lay it to another one."""
    worker = Clock(monkeypatch, ()).worker
    finish = worker._recorder.finish

    def failing():
        raise OSError("no space left")

    worker._recorder.finish = failing
    with pytest.raises(OSError, match="no space left"):
        run(worker, 3)
    assert worker.trajectory is None
    worker._recorder.finish = finish
    assert run(worker, 3).n_trajectories == 3


class Chatty(ScriptedEnv):
    """Rewards, flags and infos of all kinds, drawn from its generator; raises at one timestep over all."""

    fails_at, total = -1, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        observation, _ = super().reset(seed=seed)
        return observation, {"first": float(observation[0])} if observation[0] > 0.5 else {}

    def step(self, action: Any) -> Any:
        observation, reward, terminated, _, _ = super().step(action)
        self.total += 1
        if self.total == self.fails_at:
            raise OSError("the arm is stuck")
        draw, another = self.np_random.random(2)
        rewards: Any = [reward, int(10 * draw), np.float32(draw), True]
        ends: Any = [terminated, np.bool_(terminated), int(terminated)]
        infos: Any = [{}, {"draw": draw}, {"draw": draw, "word": "x"}, {"at": np.array([draw, 1])}]
        dtype = np.float64 if draw < 0.3 else np.float32
        chosen = rewards[int(4 * draw)], ends[int(3 * draw)], draw < 0.05, infos[int(4 * another)]
        return observation.astype(dtype), *chosen


def outcome_of(kind: type[DefaultWorker], seeds: list[int], fails_at: int, **fields: Any) -> Any:
    """Everything that a ticket gives: numbers, rollouts, or the error with its place."""
    env = Chatty((1, 30))
    env.fails_at = fails_at
    worker, _ = worker_of(env, ScriptedAgent(), kind, **fields)
    try:
        outcome = worker.rollout(Ticket(1, range(3, 3 + len(seeds))), seeds)
    except OSError as error:
        return str(error), worker.phase, worker.trajectory, worker.ran_timesteps
    numbers = outcome.n_trajectories, outcome.n_timesteps, outcome.n_abandoned, outcome.dropped, worker.ran_timesteps
    if outcome.rollouts is None:
        return numbers
    names = "observations", "last_observations", "actions", "rewards", "terminated", "truncated", "lengths"
    arrays = [getattr(outcome.rollouts, name) for name in names]
    columns = [getattr(outcome.rollouts, name) for name in ("env_infos", "agent_infos", "episode_infos")]
    found = [(array.dtype, array.shape, array.tobytes()) for array in arrays]
    return found, [(each.length, repr(each.columns)) for each in columns], numbers


@given(
    st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6),
    st.one_of(st.none(), st.integers(1, 35)),
    st.one_of(st.just(-1), st.integers(1, 60)),
    st.booleans(),
)
def test_seams_give_the_same_to_the_last_bit(seeds, limit, fails_at, drops):
    fields = {"max_episode_length": limit, "drop_unless": (lambda _names: False) if drops else None}
    fast, slow = (outcome_of(kind, seeds, fails_at, **fields) for kind in KINDS)
    assert fast == slow


@pytest.mark.parametrize("kind", KINDS)
def test_seams_are_called_where_a_method_is_overridden_alone(kind, monkeypatch):
    has_seams = []

    class Driver(SingleDriver):
        def __init__(self, *args: Any, seams: Any, **more: Any) -> None:
            has_seams.append(seams is not None)
            super().__init__(*args, seams=seams, **more)

    monkeypatch.setattr("streamsampler.workers.default.SingleDriver", Driver)
    run(worker_of(Env(), kind=kind)[0], 1)
    assert has_seams == [kind is Seamed]


class Trials(DefaultWorker):
    """Runs three episodes as one trajectory; the true final observation of an episode is in the infos."""

    def after_step(self, context: Any, result: Any) -> Any:
        observation, reward, terminated, truncated, info = result
        ended = context.memory["ended"] = context.memory.get("ended", 0) + bool(terminated or truncated)
        if not (terminated or truncated) or ended == 3:
            return result
        first, _ = context.reset(seed=context.seed + ended)
        return first, reward, False, False, {**info, "final": observation}

    def end_trajectory(self, context: Any) -> None:
        context.metrics["episodes"] = context.memory["ended"]


def test_a_seam_may_begin_another_episode_in_a_trajectory():
    batches = []
    for n_workers in (1, 3):
        options: dict[str, Any] = {"n_workers": n_workers, "seed": 5, "check": "error", "worker_class": Trials}
        with LocalSampler(ScriptedAgent(), ScriptedEnv((2, 9)), **options) as sampler:
            batches.append(sampler.obtain_trajectories(12))
    assert batches[0] == batches[1]
    assert batches[0].env_infos["_final"].sum() == 2 * 12
    assert batches[0].terminated.all()
    assert batches[0].episode_infos["episodes"].tolist() == [3] * 12


def test_each_seam_changes_what_it_says():
    calls: list[Any] = []

    class Mine(DefaultWorker):
        def begin_trajectory(self, context):
            observation, info = super().begin_trajectory(context)
            calls.append(("begin", context.index, context.seed, context.agent_version))
            return 1 - observation, {**info, "greeting": context.index}

        def before_step(self, context):
            action, info = super().before_step(context)
            return 3 - action, {**info, "own": action}

        def after_step(self, context, result):
            observation, _reward, terminated, truncated, info = result
            context.memory["seen"] = context.memory.get("seen", 0) + context.action
            return observation, context.timestep, terminated, truncated, {**info, "seen": context.memory["seen"]}

        def end_trajectory(self, context):
            calls.append(("end", context.index, context.timestep, context.terminated, context.truncated))
            np.testing.assert_array_equal(context.rewards, np.arange(context.timestep))
            assert len(context.actions) == len(context.observations) == context.timestep

    expected, found = (
        worker_of(ScriptedEnv(4), ScriptedAgent(), kind, max_episode_length=3)[0]
        .rollout(Ticket(1, range(2, 4)), [11, 12])
        .rollouts
        for kind in (DefaultWorker, Mine)
    )
    np.testing.assert_array_equal(found.observations[0], 1 - expected.observations[0])
    np.testing.assert_array_equal(found.observations[1], expected.observations[1])
    np.testing.assert_array_equal(found.actions, 3 - expected.actions)
    assert found.rewards.tolist() == [0, 1, 2, 0, 1, 2]
    assert calls == [
        ("begin", 2, 11, 1), ("end", 2, 3, False, True), ("begin", 3, 12, 1), ("end", 3, 3, False, True),
    ]  # fmt: skip


class SideBySide(VecWorker):
    def before_step(self, context: Any) -> Any:
        return context.agent.get_action(context.observation)


class OfItsOwn(Worker):
    """Calls its method itself."""

    def before_step(self, context: Any) -> Any:
        return context


def test_a_seam_that_nothing_would_call_is_refused() -> None:
    with pytest.raises(UsageError, match="SideBySide has before_step, which VecWorker does not call: only DefaultWork"):
        LocalSampler("random", "CartPole-v1", worker_class=SideBySide)
    refuse_ignored_seams(OfItsOwn)  # type: ignore[type-abstract]


class ClosesLater(ScriptedEnv):
    """Has ordinary methods, and a `close` that is to be awaited."""

    n_closed = 0

    async def close(self) -> None:  # type: ignore[override]
        ClosesLater.n_closed += 1


def test_a_close_that_is_to_be_awaited() -> None:
    ClosesLater.n_closed = 0
    with LocalSampler(ScriptedAgent(), ClosesLater) as sampler:
        sampler.obtain_trajectories(1)
    assert ClosesLater.n_closed == 1


class Looked(ScriptedEnv):
    """Counts how often its `__dict__` is asked for."""

    n_looked = 0

    @property
    def __dict__(self) -> Any:  # type: ignore[override]
        Looked.n_looked += 1
        return {}


@pytest.mark.parametrize("options", [{}, {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}])
def test_nothing_asks_for_the_dict_of_an_environment(options: Any) -> None:
    """Or Python would look up its attributes more slowly from then on: a tenth of a microsecond in a cheap step."""
    Looked.n_looked = 0
    with LocalSampler(ScriptedAgent(), Looked, check=None, **options) as sampler:
        sampler.obtain_trajectories(4)
    assert Looked.n_looked == 0
