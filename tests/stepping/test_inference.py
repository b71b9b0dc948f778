"""An agent in the sampler's process: the batches and errors of `VecWorker`, whatever happens to the environments."""

import functools
import gc
import itertools
import os
import pickle
import random
import re
import threading
import traceback
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import Limits, LocalSampler, MultiprocessingSampler, NewEnvUpdate, RandomAgent, VecWorker
from streamsampler.errors import ActionError, RolloutError, SamplerError, UsageError
from streamsampler.filters import RunningNorm
from streamsampler.stepping.inference.env_processes import EnvironmentRaisedError
from streamsampler.stepping.inference.remote_rows import RemoteRows, RowGroups
from streamsampler.stepping.pipe_links import PipeEnvPool
from streamsampler.testing import Fault, Faults
from tests.fragments.agents import Alone, Drawn, Fleeting, Mixing, Noisy, Restorable, Sticky
from tests.scripted.agents import Attentive, Balancing, Independent, RememberingAlone, Rowwise, Sampling
from tests.scripted.envs import GlobalNoise, Nested
from tests.stepping.conftest import kill
from tests.stepping.environments import Graded, Strolling
from tests.tiers import mostly_slow

SHORTER = NewEnvUpdate(gymnasium.make, {"id": "CartPole-v1", "max_episode_steps": 12})


class Walker:
    """Acts by numbers that the action space's dtype cannot hold."""

    row_independent = True

    def get_action(self, observation):
        return np.tanh(observation + 0.1), {}

    def get_actions(self, observations):
        return np.tanh(observations + 0.1), {"kind": np.ones(len(observations))}


class Exact(Walker):
    """Acts by numbers that it can hold."""

    def get_actions(self, observations):
        return np.tanh(observations + 0.1).astype(np.float32), {}


class InBlocks(Exact):
    row_independent = False


class Mixed(Mixing):
    """Lets any number of rows depend on one another."""

    def reset(self, seed):
        super().reset(seed)
        self.seen = np.zeros(())


def in_parent(agents, envs, n_workers=2, n_envs=4, **options):
    args = {"n_envs": n_envs, **options.pop("worker_args", {})}
    options = {"seed": 71, "check": None, "worker_args": args, "n_workers": n_workers, **options}
    return MultiprocessingSampler(agents, envs, inference="parent", **options)


def reference(agents, envs, n_envs=4, **options):
    args = {"n_envs": n_envs, **options.pop("worker_args", {})}
    args.pop("groups", None)  # which it has not
    options = {"seed": 71, "check": None, "worker_args": args, **options}
    return LocalSampler(agents, envs, worker_class=VecWorker, **options)


def whole_trajectories(sampler):
    yield sampler.obtain_trajectories(9)
    yield sampler.obtain_samples(60)


def all_kinds_of_calls(sampler):
    yield sampler.obtain_samples(150)
    yield sampler.obtain_trajectories(9, agent_update=np.array([0.1, 0.5, 3.0, 2.0]))
    yield sampler.obtain_samples(100, agent_update=Rowwise((0.0, 0.0, -1.0, 0.0)), env_update=SHORTER)
    yield from itertools.islice(sampler.stream(), 8)
    yield sampler.obtain_trajectories(seeds=[5, 3, 5, 8], reset_options={"low": -0.01, "high": 0.01})
    yield sampler.obtain_samples(1)
    yield sampler.obtain_trajectories(4, agent_update=Exact(), env_update=NewEnvUpdate(Strolling))  # other spaces


def dropped_and_counted(sampler):
    def outcome_of(batch):
        dropped = [(each.index, each.phase, str(each.error)) for each in batch.stats.dropped]
        assert dropped
        return batch, dropped, batch.stats.metrics

    yield outcome_of(sampler.obtain_trajectories(13))
    yield outcome_of(sampler.obtain_samples(70))
    yield outcome_of(sampler.obtain_trajectories(seeds=range(40, 60)))
    yield [*sampler.stream(n_trajectories=8)]


def fragments_of(*agents, env=Sticky):
    """Return calls in which agents replace one another, and episodes end with other calls."""

    def calls(sampler):
        for call, n_envs in enumerate((4, 4, 2, 4, 1, 4)):
            update = agents[call % len(agents)]() if len(agents) > 1 else None
            yield sampler.obtain_fragments(13, n_envs, agent_update=update)
        yield sampler.obtain_trajectories(5)
        yield sampler.obtain_fragments(9, 4, reset_options={"level": 3})
        yield sampler.obtain_fragments(9, 4, env_update=NewEnvUpdate(env))

    return calls


class Keeping:
    """Keeps what it is shown, and looks at it at the end."""

    def on_trajectory_start(self, context):
        self.seen = [context.observation]
        context.metrics["begun"] = float(len(context.reset_info))

    def on_timestep(self, context):
        self.seen.append(context.observation)

    def on_trajectory_end(self, context):
        context.metrics["sum"] = float(sum(each.sum() for each in self.seen))
        context.metrics["total"] = float(context.rewards.sum())


def is_bad(info):
    return info.get("x") == 6 or info.get("left") == 9


NORM = RunningNorm(clip=10.0)
HOOKS: dict[str, Any] = {"hooks": Keeping(), "drop_if": is_bad, "max_episode_length": 8}
SCENARIOS: dict[str, tuple[Any, Any, Any, dict[str, Any]]] = {
    "lanes": (Rowwise, "CartPole-v1", all_kinds_of_calls, {}),
    "blocks": (Balancing, "CartPole-v1", whole_trajectories, {"worker_args": {"block_size": 5}}),
    "draws in blocks": (Sampling, "CartPole-v1", whole_trajectories, {}),
    "nested": (lambda: Independent(Attentive()), Nested, whole_trajectories, {"max_episode_length": 4}),
    "a memory": (RememberingAlone, "CartPole-v1", whole_trajectories, {"worker_args": {"groups": 2}}),
    "a filter": (Rowwise, "CartPole-v1", whole_trajectories, {"observation_filter": NORM}),
    "actions of another dtype": (Walker, Strolling, whole_trajectories, {}),
    "actions of this dtype, in groups": (Exact, Strolling, whole_trajectories, {"worker_args": {"groups": 2}}),
    "hooks": (Walker, Strolling, dropped_and_counted, HOOKS),
    "hooks in blocks": (InBlocks, Strolling, dropped_and_counted, HOOKS),
    "fragments": (Fleeting, Sticky, fragments_of(Fleeting), {"observation_filter": NORM}),
    "fragments in groups": (Fleeting, Sticky, fragments_of(Fleeting, Drawn), {"worker_args": {"groups": 2}}),
    "fragments and a limit": (Alone, Sticky, fragments_of(Alone, Restorable, Drawn), {"max_episode_length": 7}),
    "fragments of one agent": (Restorable, Sticky, fragments_of(Restorable), {}),
    "fragments of dependent rows": (Mixed, Sticky, fragments_of(Mixed), {}),
    "fragments of rounded actions": (
        Walker,
        Strolling,
        fragments_of(Walker, Exact, env=Strolling),
        {"max_episode_length": 9},
    ),
    "fragments at random": (RandomAgent, Nested, fragments_of(RandomAgent, env=Nested), {}),
    "updates between fragments": (RandomAgent, Sticky, fragments_of(RandomAgent), {"observation_filter": NORM}),
}
QUICK = {"hooks in blocks", "fragments in groups"}


@pytest.mark.parametrize(
    "name", mostly_slow([it if it in QUICK else pytest.param(it, marks=pytest.mark.slow) for it in SCENARIOS])
)
def test_batches_are_those_of_vec_worker_whatever_is_killed(name, tmp_path, caplog):
    agent, env, calls, options = SCENARIOS[name]
    with reference(agent(), env, **dict(options)) as sampler:
        expected = [*calls(sampler)]
    steps = [Fault("kill", "step", step=step) for step in (1, 3, 7)]
    faults = Faults(tmp_path, Fault("kill", "construct"), Fault("kill", "reset"), *steps)
    limits: dict[str, Any] = {"max_restarts": None, "limits": Limits(max_lifetime_restarts=None)}
    with in_parent(agent(), faults.env(env), 3, **options, **limits) as sampler:
        for number, batch in enumerate(calls(sampler)):
            assert batch == expected[number]
            kill(sampler, number % 3)
        assert faults.fired() >= 3
        stats = sampler.stats
        assert 0 < stats.restarts <= faults.fired() + len(expected)
        assert stats.lost_timesteps > 0
        assert stats.failed_trajectories == 0
        parts = stats.kept_timesteps, stats.lost_timesteps, stats.surplus_timesteps, stats.abandoned_timesteps
        assert sum(stats.worker_timesteps) == sum(parts)
    assert caplog.text.count("; a new one takes its place") == stats.restarts


def test_an_agent_gets_the_spaces_of_another_environment():
    found = []
    for make in (reference, in_parent):
        with make(RandomAgent(), "Acrobot-v1", max_episode_length=20) as sampler:
            found.append([sampler.obtain_trajectories(2, env_update=env) for env in (None, "CartPole-v1")])
    assert found[0] == found[1]


def test_environments_go_on_without_slow_ones(tmp_path):
    """Environment 0 ends its first step when environment 1 has taken five."""
    os.mkfifo(tmp_path / "pipe")
    with in_parent(Fleeting(), Waiting, n_envs=2, env_kwargs={"pipe": tmp_path / "pipe"}) as sampler:
        assert sampler.obtain_fragments(10).n_timesteps == 20


class Waiting(Sticky):
    def __init__(self, pipe, worker_number=0):
        self.pipe, self.worker_number = pipe, worker_number

    def reset(self, *, seed=None, options=None):
        result = super().reset(seed=seed)
        self.length = 1000
        return result

    def step(self, action):
        if self.t == 0 and self.worker_number == 0:
            self.pipe.read_text()
        if self.t == 4 and self.worker_number == 1:
            self.pipe.write_text("!")
        return super().step(action)


class ByPlace(InBlocks):
    """Acts by the place of a row."""

    def get_actions(self, observations):
        return np.arange(len(observations)), {}


class Uneven(Graded):
    """Steps in the first process when it has in another one."""

    def __init__(self, pipe, worker_number=0):
        super().__init__()
        self.pipe, self.is_first = os.open(pipe, os.O_RDWR), not worker_number

    def step(self, action):
        os.read(self.pipe, 1) if self.is_first else os.write(self.pipe, b".")
        return super().step(action)


def test_which_process_is_quicker_does_not_show_where_rows_wait_for_each_other(tmp_path):
    """In a block, both rows end in the same step, and the first one begins the next trajectory."""
    os.mkfifo(tmp_path / "pipe")
    options: dict[str, Any] = {"n_envs": 2, "max_episode_length": 2, "worker_args": {"block_size": 6}}
    with reference(ByPlace(), Graded, **options) as sampler:
        expected = sampler.obtain_trajectories(12)
    with in_parent(ByPlace(), functools.partial(Uneven, tmp_path / "pipe"), **options) as sampler:
        assert sampler.obtain_trajectories(12) == expected


@pytest.mark.parametrize(
    ("n_groups", "turns", "without_3", "without_0"),
    [
        (1, [[0, 1, 2, 3, 5]] * 2, ([0, 1, 2, 5], False), ([1, 2, 5], False)),
        (2, [[0, 2], [1, 3, 5], [0, 2]], ([0, 2], True), ([1, 5], False)),
    ],
)
def test_groups_of_rows_are_asked_for_in_turn(n_groups, turns, without_3, without_0):
    groups = RowGroups(6, n_groups)
    live = np.ones(6, np.bool_)
    live[4] = False
    ready = live.copy()

    def found():
        rows, is_whole = groups.next(live, ready)
        return (None if rows is None else np.flatnonzero(rows).tolist()), is_whole

    for rows in turns:
        assert found() == (rows, True)
        asked, _ = groups.next(live, ready)
        assert asked is not None
        groups.record_turn(asked)
    for waits, expected in ((3, without_3), (0, without_0)):
        ready[waits] = False
        assert found() == expected
    ready[[1, 2]] = False
    assert found() == (None, False)
    live[:] = ready[:] = False
    assert found() == (None, True)


class LocalError(Exception):
    pass


class Failing(Strolling):
    """Fails in one way where it is made, in a reset, or late in a trajectory of some seeds."""

    def __init__(self, where, how):
        self.where, self.how = where, how
        super().__init__()
        self.outcome("construction", None)

    def reset(self, *, seed=None, options=None):
        self.fails = seed % 5 == 0
        return self.outcome("reset", super().reset(seed=seed))

    def step(self, action):
        return self.outcome("step", super().step(action))

    def outcome(self, where, result):
        if where != self.where or (where != "construction" and not self.fails) or (where == "step" and self.left > 4):
            return result
        if isinstance(self.how, BaseException):
            raise self.how
        return self.how if isinstance(self.how, int) else self.how(*result)


class Mistaken(Exact):
    """Returns something wrong, or raises, where it sees what is far out."""

    def __init__(self, how, far_out=-9.0):
        self.how, self.far_out, self.shown = how, far_out, []

    def get_actions(self, observations):
        actions, infos = super().get_actions(observations)
        if not (observations > self.far_out).any():
            return actions, infos
        self.shown.append(observations.tolist())
        return self.how(actions)


class Rash(Mistaken):
    """Is asked for all rows together."""

    def get_actions(self, observations, *, starts):  # type: ignore[override]
        return super().get_actions(observations)


def raises(error):
    def raise_it(*_):
        raise error

    return raise_it


ENVS: list[tuple[str, Any]] = [
    ("reset", KeyError("boom")), ("step", KeyError("boom")), ("step", SystemExit(3)), ("construction", SystemExit(3)),
    ("reset", 3), ("step", 3),
    ("reset", lambda observation, info: (observation[:1], info)), ("reset", lambda observation, _: (observation, [1])),
    ("step", lambda observation, *rest: (observation[:1], *rest)), ("step", lambda *result: (*result[:4], [1])),
]  # fmt: skip
MISTAKES: list[Any] = [
    raises(OverflowError("too far out")), lambda actions: (actions, {"x": np.zeros(len(actions) + 5)}),
    lambda actions: (actions, {"x": {"y": [1] * (len(actions) - 1)}}), lambda actions: (actions, [1]),
    lambda actions: (actions, {"x": 3.0}), lambda actions: (actions[:, :1], {}), lambda actions: (actions[1:], {}),
    lambda actions: (actions * np.nan, {}), lambda actions: (actions * 9, {}),
]  # fmt: skip
ERRORS: list[tuple[Any, Any]] = [
    *((Exact, lambda where=where, how=how: Failing(where, how)) for where, how in ENVS),
    *((InBlocks, lambda where=where, how=how: Failing(where, how)) for where, how in ENVS[:2]),
    *((lambda how=how: Mistaken(how), Strolling) for how in MISTAKES),
]
QUICK_ERRORS = (0, 7, 10, 12)


@pytest.mark.parametrize(
    "number", [n if n in QUICK_ERRORS else pytest.param(n, marks=pytest.mark.slow) for n in range(len(ERRORS))]
)
@pytest.mark.slow
def test_what_goes_wrong_is_the_error_of_vec_worker(number):
    agent, env = ERRORS[number]
    errors: list[Any] = []
    for make in (reference, in_parent):
        with make(agent(), env) as sampler:
            for call in (sampler.obtain_trajectories, sampler.obtain_fragments):
                with pytest.raises(RolloutError) as caught:
                    call(20)
                errors.append(caught.value)
            updates = {"agent_update": Exact(), "env_update": NewEnvUpdate(Strolling)}
            assert len(sampler.obtain_trajectories(5, **updates)) == 5
    # In fragments, each at its own pace, it depends on timing which one is the first.
    for expected, error in [(errors[0], errors[2]), (errors[1], errors[3])][: 2 if agent is InBlocks else 1]:
        assert str(error).splitlines()[0] == str(expected).splitlines()[0]
        assert (error.phase, error.trajectory) == (expected.phase, expected.trajectory)
        assert type(error.original) is type(expected.original)
        assert error.original.args == expected.original.args
        if isinstance(error.original, KeyError | SystemExit):
            assert "raise self.how" in "".join(traceback.format_exception(error)), "the process's own traceback"


@pytest.mark.parametrize("make", [KeyboardInterrupt, lambda: LocalError(threading.Lock())])
@pytest.mark.slow
def test_what_cannot_come_from_another_process_is_named(make):
    match = r"in trajectory \d+ of agent version 1: .*(KeyboardInterrupt|LocalError)"
    with in_parent(Exact(), lambda: Failing("step", make())) as sampler, pytest.raises(RolloutError, match=match) as it:
        sampler.obtain_trajectories(20)
    assert isinstance(it.value.original, EnvironmentRaisedError)


@pytest.mark.parametrize(("kind", "far_out"), [(Mistaken, 1.5), (Rash, 7.0)])
def test_what_an_agent_raises_for_some_rows_names_one_that_it_was_shown(kind, far_out):
    """Which others it was shown in that call depends on timing; or not, if it is to be asked for all together."""
    agent = kind(raises(OverflowError("too far out")), far_out)
    with in_parent(agent, lambda: Strolling(20)) as sampler:
        match = r"choosing an action in trajectory .*OverflowError: too far out"
        with pytest.raises(RolloutError, match=match) as caught:
            sampler.obtain_fragments(20)
        assert not sampler.obtain_fragments(1, agent_update=Exact()).continued.any()
        (note,) = caught.value.original.__notes__
        told = [int(number) for number in re.findall(r"\d+", note)]
        seeds = sampler.seeds(1, told)
    with reference(Exact(), lambda: Strolling(20)) as sampler:
        each = [one.observations.tolist() for one in sampler.obtain_trajectories(seeds=seeds)]
    named = dict(zip(told, each, strict=True))[caught.value.trajectory or 0]
    assert all(any(row in seen for row in agent.shown[0]) for seen in each)
    assert kind is Rash or any(max(row) > far_out and row in named for row in agent.shown[0])


class Straying(Exact):
    """Acts outside the action space where it sees what is far out."""

    def get_actions(self, observations):
        actions, infos = super().get_actions(observations)
        return np.where(observations > 1.5, np.float32(9.0), actions), infos


@pytest.mark.slow
def test_an_action_outside_its_space_is_the_one_that_is_told():
    for make in (reference, in_parent):
        with make(Straying(), lambda: Strolling(20)) as sampler:
            with pytest.raises(RolloutError, match=r"action is outside its space: .*9\.") as caught:
                sampler.obtain_trajectories(4)
            assert isinstance(caught.value.original, ActionError)
            assert re.search(r", at timestep \d+ of its", str(caught.value))


class Wrong(Walker):
    """Says that its rows are independent, and adds the first one to all."""

    def get_actions(self, observations):
        return np.tanh(observations + observations[:1]).astype(np.float32), {}


class Swayed(Strolling):
    """Draws from a global generator in its steps; the sampler truncates its trajectories."""

    def step(self, action):
        return super().step(action + np.random.normal(size=2).astype(np.float32))


class Careless(Fleeting):
    def get_actions(self, observations, *, draws):
        np.random.random()
        return super().get_actions(observations, draws=draws)


@pytest.mark.slow
def test_agents_and_environments_that_are_refused():
    refused: list[tuple[Any, Any, Any, type[Exception], str]] = [
        (Attentive(), GlobalNoise, lambda it: it.obtain_trajectories(9), RolloutError, "drew from a global generator"),
        (Careless(), Sticky, lambda it: it.obtain_fragments(5), RolloutError, "drew from a global generator"),
        (Drawn(), Noisy, lambda it: it.obtain_fragments(200), RolloutError, "global generator"),
        (InBlocks(), Swayed, lambda it: it.obtain_trajectories(4), RolloutError, "drew from a global generator"),
        (Wrong(), Strolling, lambda it: it.obtain_trajectories(1), RolloutError, "row_independent"),
        (
            Rowwise(), lambda worker_number=0: Graded(2 + worker_number), lambda it: it.obtain_trajectories(1),
            SamplerError, "observation space of environment 2 .*must have the same observation space",
        ),
    ]  # fmt: skip
    for agent, env, call, error, match in refused:
        with in_parent(agent, env, max_episode_length=3) as sampler, pytest.raises(error, match=match):
            call(sampler)
    block: dict[str, Any] = {"worker_args": {"block_size": 4}}  # without lanes
    with in_parent(Careless(), Sticky, **block) as sampler:
        assert sampler.obtain_fragments(5).n_timesteps == 20
    with reference(Wrong(), Strolling, **block) as one, in_parent(Wrong(), Strolling, **block) as sampler:
        assert sampler.obtain_trajectories(9) == one.obtain_trajectories(9)


ARGUMENTS: list[tuple[dict[str, Any], str]] = [
    ({"inference": "here"}, '"worker" or "parent", got \'here\''),
    ({"engine": "queues", "limits": Limits(max_worker_memory=1 << 30)}, r"takes no limits\.max_worker_memory"),
    ({"limits": Limits(max_worker_memory=1 << 30)}, r"takes no limits\.max_worker_memory"),
    ({"n_workers": 17}, "only 16 environments"),
    ({"worker_class": type("Own", (VecWorker,), {})}, "or the default, got Own"),
    ({"agents": [Rowwise(), Rowwise()]}, "one agent"),
    ({"envs": ["CartPole-v1", "CartPole-v1"]}, "one environment"),
    ({"on_failure": "drop"}, "cannot drop"),
    ({"staleness": 1}, "takes no staleness: .*Leave one of the two out"),
    ({"order": "arrival"}, "takes no order: .*Leave one of the two out"),
    ({"worker_args": {"groups": 0}}, "at least 1"),
    ({"worker_args": {"groups": "2"}}, "an integer"),
    ({"worker_args": {"groups": 17}}, "only 16"),
]


@pytest.mark.parametrize(("options", "match"), ARGUMENTS)
def test_arguments_that_cannot_work_are_errors(options, match):
    given = {"agents": Rowwise(), "envs": "CartPole-v1", "n_workers": 2, "inference": "parent", **options}
    with pytest.raises(UsageError, match=match):
        MultiprocessingSampler(given.pop("agents"), given.pop("envs"), **given)


CALLS: list[tuple[Any, type[Exception], str]] = [
    (lambda it: it.obtain_fragments(5, 9), UsageError, r'called for 9 environments, .*inference="parent" has 4: pass'),
    (lambda it: it.obtain_samples(1, agent_update=[Rowwise()] * 2), UsageError, r'one agent .*inference="worker"'),
    (lambda it: it.obtain_samples(1, agent_update=[0.1, 0.2]), UsageError, r"pass a tuple"),
    (lambda it: it.obtain_samples(1, env_update=vectorized), RolloutError, "vector environment"),
]


def vectorized():
    return gymnasium.make_vec("CartPole-v1", num_envs=2)


def test_calls_that_cannot_work_are_errors():
    with in_parent(Rowwise(), "CartPole-v1") as sampler:
        for call, error, match in CALLS:
            with pytest.raises(error, match=match):
                call(sampler)


class Service(Exact):
    """Cannot be pickled, and acts by what its owner sets."""

    def __init__(self):
        self.lock = threading.Lock()
        self.factor = 1.0
        self.shapes = set()

    def get_actions(self, observations):
        self.shapes.add(observations.shape)
        with self.lock:
            threading.Event().wait(0.001)
            actions, infos = super().get_actions(observations)
            return (self.factor * actions).astype(np.float32), infos


def test_the_agent_is_the_one_that_was_passed_and_no_copy():
    service, other = Service(), Service()
    with in_parent(service, Strolling, worker_args={"groups": 2}) as sampler:
        random.seed(3)
        before = sampler.obtain_trajectories(5)
        assert random.random() == random.Random(3).random(), "the program's own generators are left alone"
        times = sampler.stats.workers[0]
        assert times.agent > 0.001 * before.lengths.max()
        assert times.step > 0.0
        assert service.shapes == {(4, 2)}, "each call has the shape of all rows, also of a group"
        service.factor = 0.5
        after = sampler.obtain_trajectories(5)
        np.testing.assert_array_equal(after.actions[:1], 0.5 * np.tanh(after.observations[:1] + 0.1).astype(np.float32))
        sampler.obtain_trajectories(5, agent_update=other)
        other.factor = 0.0
        assert not sampler.obtain_trajectories(5).actions.any()
        assert len(set(sampler.worker_pids()) | {os.getpid()}) == 3


def test_there_are_no_process_ids_before_processes(monkeypatch):
    """Another thread may ask for them while they start."""
    asked = []

    def starting(*arguments):
        asked.append(sampler.worker_pids())
        return PipeEnvPool(*arguments)

    monkeypatch.setattr("streamsampler.stepping.pipe_links.PipeEnvPool", starting)
    with in_parent(Rowwise(), "CartPole-v1") as sampler:
        sampler.obtain_trajectories(3)
        assert asked == [[]]


def rows_in_memory():
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    return sum("streamsampler-rows" in os.readlink(link) for link in links if os.path.islink(link))


@pytest.mark.parametrize("where", mostly_slow(["construct", "reset", "step"]))
def test_memory_of_lost_processes_does_not_wait_for_the_garbage_collector(where, tmp_path):
    faults = Faults(tmp_path, Fault("kill", where))
    gc.collect()
    before = rows_in_memory()
    gc.disable()
    try:
        with in_parent(Balancing(), faults.env("CartPole-v1"), max_restarts=9) as sampler:
            sampler.obtain_trajectories(5)
            assert sampler.stats.restarts == 1
        assert rows_in_memory() == before
    finally:
        gc.enable()


def test_a_sampler_pickles():
    with in_parent(Rowwise(), "CartPole-v1") as sampler, pickle.loads(pickle.dumps(sampler)) as twin:
        assert twin.obtain_trajectories(3) == sampler.obtain_trajectories(3)


USES: dict[str, Any] = {
    "on_trajectory_start": lambda context: context.env.unwrapped,
    "on_timestep": lambda context: context.reset(seed=3),
    "on_trajectory_end": lambda context: setattr(context.env, "level", 3),
}


class Reaching:
    """Uses what is in another process."""

    def __init__(self, hook):
        setattr(self, hook, USES[hook])


class Losing:
    """Raises late in a trajectory, and notes what was lost."""

    def __init__(self, folder):
        self.folder = folder

    def on_timestep(self, context):
        if context.timestep == 2:
            raise ArithmeticError("no more")

    def on_trajectory_lost(self, context, error):
        (self.folder / f"{context.index} {type(error).__name__}").touch()


@pytest.mark.parametrize("hook", USES)
def test_hooks_that_use_the_environment_are_an_error(hook):
    match = rf"{hook}.*hooks have no context.env and no context.reset"
    with in_parent(Exact(), Strolling, 1, hooks=Reaching(hook)) as sampler:
        with pytest.raises(RolloutError, match=match) as caught:
            sampler.obtain_trajectories(2)
        assert isinstance(caught.value.original, UsageError)


def test_what_a_hook_or_drop_if_raises_is_an_error(tmp_path):
    errors: list[tuple[dict[str, Any], str]] = [
        ({"hooks": Losing(tmp_path)}, r"on_timestep.*in trajectory 0.*no more"),
        ({"drop_if": lambda _: True}, r"too many to drop.*drop_if returned true for the reset's info"),
        ({"drop_if": lambda info: info["no"]}, r"calling drop_if in trajectory 0.*KeyError"),
    ]
    for options, match in errors:
        with (
            in_parent(Exact(), lambda: Strolling(9), 1, **options) as sampler,
            pytest.raises(RolloutError, match=match),
        ):
            sampler.obtain_trajectories(5)
    assert [file.name for file in tmp_path.iterdir()] == ["0 ArithmeticError"]


def test_results_of_rows_that_wait_for_each_other_are_taken_together():
    """Whichever arrives first: rows in their order begin the next trajectories of a block."""
    arriving, taken = iter([[2], [0], [1]]), []
    ready = np.zeros(3, np.bool_)

    def take(rows: Any) -> None:
        taken.append(rows)
        ready[rows] = True

    scheduler = SimpleNamespace(restoring=set())
    environments = SimpleNamespace(receive_arrived=lambda _timeout: next(arriving), scheduler=scheduler)
    rows: Any = SimpleNamespace(
        _environments=environments, _runs=np.ones(3, np.bool_), _ready=ready, _usable=lambda: ready, _take=take,
        _is_done=lambda: False,
    )  # fmt: skip
    assert RemoteRows._wait_for_all(rows).all()
    assert taken == [[0, 1, 2]]
