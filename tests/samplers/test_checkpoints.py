"""A run that is stopped after any call, and continued in another sampler, gives the bits of an uninterrupted one."""

from __future__ import annotations

import copy
import logging
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st

from streamsampler import (
    LocalSampler,
    MultiprocessingSampler,
    PerWorker,
    RandomAgent,
    RaySampler,
    SetTaskUpdate,
    VecWorker,
    evaluate,
)
from streamsampler.errors import (
    ClosedError,
    ConcurrentCallError,
    RolloutError,
    SamplerError,
    SerializationError,
    UsageError,
)
from streamsampler.filters import RunningNorm, RunningReturnNorm
from tests.fragments.agents import CountsRows, Drawn, Forgetful, Mixing, Offset, Recurrent, Restorable, Sticky
from tests.scripted.agents import Linear
from tests.scripted.envs import Nested
from tests.scripted.games import Chooser, Comings, Stay
from tests.tiers import costly, mostly_slow

SLOW = pytest.mark.slow
SEED = 2**70 + 5
THREE: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}
EIGHT: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 8}}


class Tasked(Offset):
    """Adds its task to what is observed."""

    task = 0.0

    def set_task(self, task: float) -> None:
        self.task = task

    def observe(self) -> Any:
        return super().observe() + np.float32(self.task)


class StoredContext:
    """Hooks that keep something of each episode."""

    def on_trajectory_start(self, context: Any) -> None:
        context.memory["seen"] = 0.0

    def on_timestep(self, context: Any) -> None:
        context.memory["seen"] += float(context.rewards.sum())
        context.metrics["seen"] = context.memory["seen"]


def plain(value: Any) -> Any:
    """Return a copy of a state, of which only types are used that any reader of checkpoints takes."""
    if isinstance(value, dict):
        assert type(value) is dict
        return {plain(key): plain(item) for key, item in value.items()}
    if isinstance(value, list):
        assert type(value) is list
        return [plain(item) for item in value]
    assert type(value) in (int, float, str, bool, type(None), bytes), value
    assert value != b"", "torch.load reads none"
    return value


ENGINES: dict[str, Callable[..., Any]] = {
    "local": LocalSampler,
    "processes": lambda *args, **options: MultiprocessingSampler(*args, engine="processes", **options),
    "queues": lambda *args, **options: MultiprocessingSampler(*args, engine="queues", start_method="fork", **options),
    "parent": lambda *args, **options: MultiprocessingSampler(*args, inference="parent", **options),
    "ray": lambda *args, **options: RaySampler(*args, worker_resources={"num_cpus": 0}, **options),
}
KINDS: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "one": (Restorable, {}),
    "recurrent": (Recurrent, {"hooks": StoredContext()}),
    "rows": (Drawn, THREE),
    "mixing": (Mixing, THREE),
    "parent": (Drawn, EIGHT),
}
PARAMETERS = {"one": 4, "recurrent": 4}  # others take one number


@st.composite
def programs(draw: Any, kind: str, *, lag: bool = False) -> list[tuple[str, Any, dict[str, Any]]]:
    """Draw calls: their names, sizes and updates."""
    made, calls = KINDS[kind][0], []
    n_envs = draw(st.sampled_from([1, 4, 5]))
    names = ["samples", "trajectories", "exact"] if lag else ["samples", "trajectories", "exact", *["fragments"] * 5]
    for _ in range(draw(st.integers(2, 6))):
        name = draw(st.sampled_from(names))
        size: Any = draw(st.integers(1, 30)) if name != "exact" else 6
        size = (size, n_envs) if name == "fragments" else size
        given: dict[str, Any] = {}
        match draw(st.integers(0, 9)):
            case 0 | 1 | 2:
                given["agent_update"] = np.full(PARAMETERS.get(kind, 1), draw(st.sampled_from([-0.3, 0.1, 0.4])))
            case 3:
                given["agent_update"] = made()
        match draw(st.integers(0, 7)):
            case 0:
                given["env_update"] = SetTaskUpdate(Tasked, draw(st.sampled_from([0.5, 2.0])))
            case 1 | 2:
                given["reset_options"] = {"offset": [draw(st.sampled_from([0.25, 4.0]))]}
        calls.append((name, size, given))
    return calls


def do(sampler: Any, call: tuple[str, Any, dict[str, Any]]) -> Any:
    name, size, given = call
    given = copy.deepcopy(given)
    if name == "fragments":
        return sampler.obtain_fragments(*size, **given)
    if name == "exact":
        return sampler.obtain_exact_trajectories(size // sampler.n_workers, **given)
    return getattr(sampler, f"obtain_{name}")(size, **given)


def check(
    kind: str, program: list[Any], cut: int, first: tuple[str, int], then: tuple[str, int], **options: Any
) -> None:
    """Compare a run that is stopped before call `cut` with one that is not."""
    made, of_kind = KINDS[kind]
    options = {"seed": SEED, "check": None, **of_kind, **options}
    with LocalSampler(made(), Tasked, **options) as whole:
        expected = [do(whole, call) for call in program]
        filters, kept, episodes = whole.filters, whole.total_env_steps, whole.stats.episodes
    with ENGINES[first[0]](made(), Tasked, n_workers=first[1], **options) as stopped:
        found = [do(stopped, call) for call in program[:cut]]
        state = plain(stopped.state_dict(agents=True))
        copied = pickle.dumps(stopped)
    with ENGINES[then[0]](made(), Tasked, n_workers=then[1], **options) as going_on:
        going_on.load_state_dict(state)
        assert going_on.agent_version == cut
        found += [do(going_on, call) for call in program[cut:]]
        stats = going_on.stats
        assert (stats.kept_timesteps, stats.episodes.count, stats.failed_trajectories) == (kept, episodes.count, 0)
        assert going_on.filters == filters
    assert found == expected
    if cut == len(program) // 2:
        with pickle.loads(copied) as going_on:
            assert [do(going_on, call) for call in program[cut:]] == expected[cut:]


ENDS = [
    ("one", ("local", 2), ("local", 3)),
    ("recurrent", ("local", 3), ("local", 1)),
    ("rows", ("local", 1), ("local", 2)),
    ("mixing", ("local", 2), ("local", 1)),
    pytest.param("recurrent", ("local", 1), ("processes", 2), marks=SLOW),
    pytest.param("recurrent", ("processes", 3), ("queues", 2), marks=SLOW),
    pytest.param("mixing", ("processes", 2), ("processes", 3), marks=SLOW),
    pytest.param("rows", ("queues", 2), ("local", 1), marks=SLOW),
    pytest.param("parent", ("parent", 2), ("local", 2), marks=SLOW),
    pytest.param("parent", ("local", 1), ("parent", 3), marks=SLOW),
    pytest.param("parent", ("parent", 2), ("parent", 1), marks=SLOW),
]


@pytest.mark.parametrize(("kind", "first", "then"), ENDS)
@pytest.mark.parametrize("filtered", mostly_slow([True, False]))
@costly(3)
@given(data=st.data())
def test_random_programs_that_are_stopped_give_the_bits_of_whole_ones(kind, first, then, filtered, data):
    program = data.draw(programs(kind))
    options = {"observation_filter": RunningNorm(), "reward_filter": RunningReturnNorm(0.9)} if filtered else {}
    check(kind, program, data.draw(st.integers(0, len(program))), first, then, **options)


@pytest.mark.parametrize(("kind", "first", "then"), [each for each in ENDS if "parent" not in str(each)])
@costly(3)
@given(data=st.data())
def test_random_programs_with_a_lag(kind, first, then, data):
    program = data.draw(programs(kind, lag=True))
    check(kind, program, data.draw(st.integers(0, len(program))), first, then, staleness=1)


FRAGMENTS: list[Any] = [("fragments", (n, 5), {"reset_options": {"offset": [n / 4]}}) for n in (7, 12, 3, 9)]


@pytest.mark.parametrize(
    ("kind", "first", "then"),
    mostly_slow([("recurrent", ("local", 2), ("processes", 2)), ("parent", ("local", 1), ("parent", 2))]),
)
def test_fragments_go_on_in_processes(kind, first, then):
    check(kind, FRAGMENTS, 2, first, then)


@pytest.mark.ray
@pytest.mark.extras
def test_fragments_and_a_lag_go_on_in_a_cluster(ray_cluster):
    check("recurrent", FRAGMENTS, 2, ("local", 1), ("ray", 2))
    check("rows", FRAGMENTS, 2, ("ray", 2), ("local", 2))
    calls = [("samples", 40, {"agent_update": np.full(4, each)}) for each in (0.1, -0.2, 0.3)]
    check("one", calls, 2, ("ray", 2), ("ray", 1), staleness=1)


def local(agent: Any = None, env: Any = Tasked, **options: Any) -> LocalSampler:
    return LocalSampler(Restorable() if agent is None else agent, env, **{"seed": SEED, "check": None, **options})


def test_actions_of_nested_spaces_are_kept(tmp_path):
    with local(RandomAgent(), Nested) as sampler, local(RandomAgent(), Nested) as other:
        sampler.obtain_fragments(3, 4)
        other.load_state_dict(plain(sampler.state_dict()))
        assert other.obtain_fragments(4) == sampler.obtain_fragments(4)


class Words(Sticky):
    """Takes words."""

    action_space: Any = spaces.Text(5)

    def step(self, action: Any) -> Any:
        assert isinstance(action, str)
        return super().step(len(action))


def test_actions_that_are_no_numbers_are_kept():
    with local(RandomAgent(), Words) as sampler, local(RandomAgent(), Words) as other:
        sampler.obtain_fragments(6, 3)
        other.load_state_dict(plain(sampler.state_dict()))
        batch = other.obtain_fragments(4)
        assert batch == sampler.obtain_fragments(4)
        assert batch.continued.any()


def test_without_agents_the_learner_brings_its_own():
    parameters = np.array([0.1, 0.2, -0.3, 0.4])
    with local(Recurrent()) as sampler, local(Recurrent(parameters.tolist())) as other, local(Recurrent()) as third:
        sampler.obtain_fragments(5, 3, agent_update=parameters)
        state = sampler.state_dict()
        assert state["updates"] is None, "no agent, and the environment is the given one"
        for each in (other, third):
            each.load_state_dict(state)
        expected = sampler.obtain_fragments(5)
        assert other.obtain_fragments(5) == expected
        assert third.obtain_fragments(5, agent_update=parameters) == expected


def test_parameters_come_back_with_the_agent_that_is_in_force():
    with local() as sampler, local() as other:
        sampler.obtain_samples(5, agent_update=np.ones(4))
        other.obtain_samples(5, agent_update=-np.ones(4))
        other.load_state_dict(sampler.state_dict(agents=True))
        assert other.obtain_samples(50) == sampler.obtain_samples(50)
        sampler.load_state_dict(local().state_dict(agents=True))
        assert sampler.obtain_samples(50) == local().obtain_samples(50), "no parameters"


def test_agents_and_environments_for_each_worker():
    def made(n: int = 2) -> LocalSampler:
        return local(PerWorker([Linear((k, 0, 0, 1)) for k in range(n)]), PerWorker([Tasked] * n))

    with made() as sampler, made() as other, made(3) as third, local(n_workers=3) as alike:
        sampler.obtain_trajectories(4, agent_update=PerWorker([None, np.ones(4)]))
        sampler.obtain_trajectories(4, env_update=PerWorker([SetTaskUpdate(Tasked, 3.0), None]))
        state = sampler.state_dict(agents=True)
        other.load_state_dict(state)
        assert other.obtain_trajectories(6) == sampler.obtain_trajectories(6)
        for wrong in (third, alike):
            with pytest.raises(UsageError, match="from a sampler with 2 workers, but this sampler has 3: "):
                wrong.load_state_dict(state)


@pytest.mark.parametrize("engine", ["local", pytest.param("processes", marks=SLOW), pytest.param("parent", marks=SLOW)])
def test_a_sampler_that_has_run_goes_back(engine):
    with ENGINES[engine](Drawn(), Tasked, n_workers=2, seed=SEED, check=None, **EIGHT) as sampler:
        states, batches = [sampler.state_dict()], []
        for n in (4, 9, 2, 7):
            batches.append(sampler.obtain_fragments(n, 5))
            states.append(sampler.state_dict())
        trajectories = sampler.stream()
        next(trajectories)
        for back in (2, 0, 4, 3, 1):
            sampler.load_state_dict(states[back])
            assert sampler.total_env_steps == 5 * sum((4, 9, 2, 7)[:back])
            assert [sampler.obtain_fragments(n) if back else sampler.obtain_fragments(n, 5) for n in (4, 9, 2, 7)[back:]
                    ] == batches[back:]  # fmt: skip


def test_a_stream_ends_and_leaves_nothing_in_the_filters():
    with local(observation_filter=RunningNorm()) as sampler, local(observation_filter=RunningNorm()) as whole:
        state = sampler.state_dict()
        trajectories = sampler.stream()
        next(trajectories)
        sampler.load_state_dict(state)
        with pytest.raises(SamplerError, match="stream was ended"):
            list(trajectories)
        assert sampler.obtain_samples(30) == whole.obtain_samples(30)
        assert sampler.filters == whole.filters


def test_what_an_agent_has_learnt_in_this_process_comes_with_it():
    with (
        ENGINES["parent"](agent := Drawn(), Tasked, n_workers=1, seed=SEED, check=None, **THREE) as sampler,
        local(Drawn(), **THREE) as other,
    ):
        sampler.obtain_samples(5, agent_update=np.ones(1))
        agent.weight = 3.0
        other.load_state_dict(sampler.state_dict(agents=True))
        assert other.obtain_samples(30) == sampler.obtain_samples(30)


def test_a_lag_with_agents_for_each_worker_of_which_one_is_replaced():
    agents = [Linear((k, 0, 0, 1)) for k in range(2)]
    with local(agents, staleness=1) as sampler, local(agents, staleness=1) as other:
        sampler.obtain_samples(20, agent_update=PerWorker([None, np.ones(4)]))
        sampler.obtain_samples(20, agent_update=PerWorker([Linear((3, 2, 1, 0)), None]))
        other.load_state_dict(sampler.state_dict(agents=True))
        for _ in range(2):
            assert other.obtain_samples(20) == sampler.obtain_samples(20)


@pytest.mark.slow
def test_a_lag_goes_back_while_workers_run_ahead():
    with MultiprocessingSampler(Restorable(), Tasked, n_workers=2, seed=SEED, check=None, staleness=1) as sampler:
        calls = [("samples", 40, {"agent_update": np.full(4, each)}) for each in (0.1, -0.2, 0.3, 0.0)]
        do(sampler, calls[0])
        state = sampler.state_dict(agents=True)
        batches = [do(sampler, call) for call in calls[1:]]
        sampler.load_state_dict(state)
        assert [do(sampler, call) for call in calls[1:]] == batches


def test_an_environment_that_calls_have_updated_is_in_the_state():
    with local() as sampler, local() as other:
        first = sampler.state_dict()
        sampler.obtain_fragments(5, 3, env_update=SetTaskUpdate(Tasked, 2.0))
        other.load_state_dict(plain(sampler.state_dict()))
        assert other.obtain_fragments(5) == sampler.obtain_fragments(5)
        assert other.state_dict()["updates"] is not None
        with pytest.raises(UsageError, match="a call has updated this sampler's: load the state into a new sampler"):
            sampler.load_state_dict(first)
        with pickle.loads(pickle.dumps(sampler)) as third:
            assert third.state_dict()["updates"] is not None


class WithAttributes(LocalSampler[Any, Any]):
    """A subclass with attributes of its own, one of them with a name that the package uses as well."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.life, self.notes = "mine", ["one"]


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda sampler: pickle.loads(pickle.dumps(sampler))])
def test_a_copy_of_a_sampler_keeps_what_a_subclass_has_in_attributes(way):
    with WithAttributes(Restorable(), Tasked, seed=SEED) as sampler:
        sampler.obtain_trajectories(2)
        with way(sampler) as other:
            assert (other.life, other.notes) == ("mine", ["one"])
            assert other.obtain_trajectories(2) == sampler.obtain_trajectories(2)


def test_accounts_go_on():
    with local(n_workers=3, hooks=StoredContext()) as sampler, local(n_workers=2, hooks=StoredContext()) as other:
        batch = sampler.obtain_samples(60)
        sampler.obtain_fragments(9, 5)
        sampler.stats.take_infos(batch, {"t": "histogram"})
        before = sampler.stats
        other.load_state_dict(plain(sampler.state_dict()))
        after = other.stats
        assert {name: number for name, number in after.flat().items() if not np.isnan(number)} == pytest.approx(
            {name: number for name, number in before.flat().items() if not np.isnan(number)}
        )
        assert after.histograms["t"].tobytes() == before.histograms["t"].tobytes()
        assert (sum(after.worker_timesteps), len(after.workers)) == (sum(before.worker_timesteps), 2)
        ran, lengths = (
            after.ran_timesteps,
            sum(it["length"] for it in sampler.state_dict()["fragments"]["environments"]),
        )
        other.obtain_fragments(9)
        assert other.total_env_steps == sampler.total_env_steps + 45
        assert other.stats.ran_timesteps == ran + 45 + lengths
        assert other.stats.lost_timesteps == before.lost_timesteps + lengths, "what was run again to restore episodes"
        assert (other.stats.failed_trajectories, other.stats.restarts) == (0, 0), "nothing was lost"


def test_what_ran_unseen_is_counted_when_a_sampler_that_goes_on_is_closed(monkeypatch):
    with local() as sampler:
        sampler.obtain_samples(60)
        state = sampler.state_dict()
    with local() as other:
        other.load_state_dict(state)
        other.obtain_samples(60)
        ran, session = other.stats.ran_timesteps, other._life.session
        in_session = session.pop_ran_timesteps()
        monkeypatch.setattr(session, "pop_ran_timesteps", lambda: in_session + 7)
    assert other.stats.ran_timesteps == ran + 7
    assert other.stats.abandoned_timesteps == 7


def test_an_environment_that_comes_with_a_state_is_checked():
    with local(check="warn") as sampler, local(check="warn") as other:
        other.obtain_samples(5)
        sampler.obtain_samples(5, env_update=SetTaskUpdate(Tasked, 2.0))
        state = sampler.state_dict()
        state["stats"]["checked_timesteps"] = 0
        other.load_state_dict(state)
        other.obtain_samples(5)
        assert other.stats.checked_timesteps > 0


def test_what_a_state_replaced_is_not_published_any_more():
    with local() as sampler, local() as other:
        sampler.obtain_samples(5, agent_update=np.ones(4), env_update=Tasked)
        other.load_state_dict(sampler.state_dict(agents=True))
        assert other._life.session.store._published.keys() == other._life.session.store.latest.payloads().keys()


class Reading(Restorable):
    """Says what it sees."""

    def get_action(self, observation: Any) -> tuple[Any, dict[str, Any]]:
        return super().get_action(observation)[0], {"seen": np.array(observation)}


@pytest.mark.parametrize("options", [{}, {"observation_filter": RunningNorm()}])
def test_the_last_call_can_be_replayed(options):
    with local(Reading(), **options) as sampler, local(Reading(), **options) as other:
        sampler.obtain_samples(30)
        batch = sampler.obtain_samples(50, agent_update=np.ones(4))
        other.load_state_dict(sampler.state_dict(agents=True))
        assert other.replay(2, 2, recorded=batch).same
        assert other.filters == sampler.filters


class Picky(Restorable):
    """Refuses parameters of another shape."""

    def set_param_values(self, weights: Any) -> None:
        if len(weights) != 4:
            raise ValueError("four are needed")
        super().set_param_values(weights)


@pytest.mark.parametrize("way", ["state", "pickle"])
def test_with_a_lag_the_last_batch_is_replayed_and_a_refused_update_goes_back(way):
    with local(Picky(), staleness=1) as sampler:
        sampler.obtain_samples(20, agent_update=np.ones(4), env_update=SetTaskUpdate(Tasked, 2.0))
        batch = sampler.obtain_samples(20, agent_update=np.ones(3))
        other = pickle.loads(pickle.dumps(sampler)) if way == "pickle" else local(Picky(), staleness=1)
        with other:
            if way == "state":
                other.load_state_dict(plain(sampler.state_dict(agents=True)))
            assert other.replay(1, int(batch.indices[-1]), recorded=batch).same
            for each in (sampler, other):
                with pytest.raises(RolloutError, match="four are needed"):
                    each.obtain_samples(20)
            assert other.obtain_samples(20) == sampler.obtain_samples(20), "with the parameters before"


def test_several_policies():
    def made(*names: str) -> LocalSampler:
        agents = {name: Chooser(3) for name in names}
        norms = {names[0]: RunningReturnNorm()}
        games = {"red_0": Stay(0, 9), "blue_0": Stay(1, 3)}
        policy_of = {"red_0": names[0], "blue_0": names[-1]}
        return local(agents, partial(Comings, games), policy_of=policy_of, reward_filter=norms)

    with made("red", "blue") as sampler, made("red", "blue") as other, made("all") as third:
        sampler.obtain_samples(50)
        other.load_state_dict(plain(sampler.state_dict()))
        assert other.obtain_samples(50) == sampler.obtain_samples(50)
        with pytest.raises(
            UsageError, match=r"list of policies in the state is \['blue', 'red'\], in this sampler \['all'\]"
        ):
            third.load_state_dict(sampler.state_dict())


def test_dropped_trajectories_and_anomalies_are_in_the_accounts():
    with (
        local(env=Failing, on_failure="drop", check="warn") as sampler,
        local(env=Failing, on_failure="drop", n_workers=2) as other,
    ):
        sampler.obtain_trajectories(4)
        other.load_state_dict(plain(sampler.state_dict()))
        assert other.stats.dropped == sampler.stats.dropped != []
        assert other.stats.first_anomaly == sampler.stats.first_anomaly is not None


class Failing(Tasked):
    """Raises in some trajectories, and rewards with NaN."""

    def step(self, action: Any) -> Any:
        if self.length == 8 and self.t == 2:
            raise ValueError("no")
        observation, _, *rest = super().step(action)
        return observation, float("nan"), *rest


@pytest.mark.parametrize(
    ("agent", "env", "options", "call", "why"),
    [
        (Linear, Sticky, {}, {}, "its agent may have memory, but lacks get_state or set_state"),
        (CountsRows, Sticky, THREE, {}, "its agent may have memory, but lacks get_state or set_state"),
        (Restorable, Sticky, {}, {"restore_limit": 0}, "the episode is longer than can be restored"),
        (Restorable, Forgetful, {}, {}, "the same actions did not lead to the same observations and rewards"),
    ],
)
def test_what_cannot_be_restored_is_said_and_counts_as_failed(agent, env, options, call, why, caplog):
    with local(agent(), env, **options) as sampler, local(agent(), env, **options) as other:
        cut = sampler.obtain_fragments(4, 5, **call).cut.sum()
        other.load_state_dict(plain(sampler.state_dict()))
        assert not caplog.text
        with caplog.at_level(logging.WARNING, "streamsampler"):
            batch = other.obtain_fragments(4)
        said = "of the loaded state cannot be restored: " + why
        assert caplog.text.count(said) == other.stats.failed_trajectories == cut > 0
        assert not batch.continued.any()
        assert not caplog.text.count("open episode in environment 0 cannot")
        caplog.clear()
        other.obtain_fragments(4)
        assert not caplog.text


def test_after_an_error_or_whole_trajectories_fragments_begin_anew_as_without_a_checkpoint():
    for then in ("raise", "whole"):
        with local(env=Failing) as sampler, local(env=Failing) as other:
            sampler.obtain_fragments(1, 5)
            if then == "raise":
                with pytest.raises(RolloutError):
                    sampler.obtain_fragments(30)
            else:
                sampler.obtain_trajectories(1, seeds=[one_that_works()])
            state = plain(sampler.state_dict())
            assert then == "whole" or state["fragments"] is None
            other.load_state_dict(state)
            batch = sampler.obtain_fragments(1)
            assert other.obtain_fragments(1) == batch


def one_that_works() -> int:
    env = Failing()
    for seed in range(100):
        env.reset(seed=seed)
        if env.length == 1:
            return seed
    raise AssertionError


WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "seed": ({"seed": 3}, {"seed": 4}, "seed in the state is 3, in this sampler 4: pass seed=3 to the sampler"),
    "kind": ({}, THREE, "worker_class in the state is 'DefaultWorker', in this sampler 'VecWorker'"),
    "rows": (THREE, EIGHT, 'in the state is 3, in this sampler 8: pass worker_args={"n_envs": 3}'),
    "lag": ({"staleness": 1}, {}, "staleness in the state is 1, in this sampler 0: pass staleness=1"),
    "filter": (
        {"observation_filter": RunningNorm()}, {"reward_filter": RunningReturnNorm()},
        "filters in the state is observation_filter=RunningNorm, in this sampler reward_filter=RunningReturnNorm",
    ),
    "none": ({"reward_filter": RunningReturnNorm()}, {}, "reward_filter=RunningReturnNorm, in this sampler none"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_state_of_another_sampler_is_refused_with_both_values(name):
    saved, loading, message = WRONG[name]
    with local(Drawn(), **saved) as sampler, local(Drawn(), **loading) as other:
        if "worker_class" in saved:
            sampler.obtain_fragments(2, 4)
        before = other.state_dict()
        with pytest.raises(UsageError) as caught:
            other.load_state_dict(sampler.state_dict())
        assert message in str(caught.value)
        assert other.state_dict() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda state: {**state, "format": 9},
            "the state has format 9, but this version of streamsampler reads format 1",
        ),
        (lambda state: {}, "load_state_dict takes the dict returned by state_dict, got {}"),
        (lambda state: None, "load_state_dict takes the dict returned by state_dict, got None"),
        (lambda state: {**state, "filters_pickle": b"no pickle"}, "cannot read the state: UnpicklingError"),
        (lambda state: {**state, "stats": {}}, "cannot read the state: KeyError: 'workers'"),
        (lambda state: {key: it for key, it in state.items() if key != "rows"}, "the state lacks 'rows'"),
    ],
)
def test_what_is_no_state_is_refused(change, message):
    with local() as sampler:
        sampler.obtain_fragments(5, 4)
        state = sampler.state_dict()
        with pytest.raises(UsageError) as caught:
            sampler.load_state_dict(change(state))
        assert message in str(caught.value)
        assert sampler.obtain_fragments(3).continued.any(), "nothing changed"


@SLOW
def test_more_environments_than_the_process_with_the_agent_has():
    with local(Drawn(), **THREE) as sampler, ENGINES["parent"](Drawn(), Tasked, seed=SEED, **THREE) as other:
        sampler.obtain_fragments(2, 4)
        with pytest.raises(UsageError, match=r"fragments of 4 environments, but .* has 3: pass"):
            other.load_state_dict(sampler.state_dict())


def test_a_lag_needs_the_agents():
    with local(staleness=1) as sampler:
        sampler.state_dict()
        sampler.obtain_samples(5)
        with pytest.raises(UsageError, match=r"needs agents=True, because .* the last call's parameters"):
            sampler.state_dict()
        assert sampler.state_dict(agents=True)["first_trajectory"] == sampler.obtain_samples(5).indices[0]


class Locked(Linear):
    """Cannot be pickled."""

    def __reduce__(self) -> Any:
        raise TypeError("has a lock")


def during(method: Callable[[], Any], _: Any) -> None:
    method()


def test_calls_for_which_it_is_no_time():
    with local() as sampler:
        trajectories = sampler.stream()
        next(trajectories)
        with pytest.raises(UsageError, match="a stream is open: leave the stream's loop, or close it, before"):
            sampler.state_dict()
        trajectories.close()
        state = sampler.state_dict()
        for method in (sampler.state_dict, lambda: sampler.load_state_dict(state)):
            with pytest.raises(ConcurrentCallError):
                sampler.obtain_samples(5, progress=partial(during, method))
    for method in (sampler.state_dict, lambda: sampler.load_state_dict(state)):
        with pytest.raises(ClosedError):
            method()


def test_an_agent_that_is_held_here_and_cannot_be_pickled():
    with ENGINES["parent"](Locked(), Tasked, n_workers=1, seed=SEED, worker_args={"n_envs": 1}) as sampler:
        sampler.state_dict()
        with pytest.raises(SerializationError, match="has a lock"):
            sampler.state_dict(agents=True)
        sampler.obtain_samples(3)


@pytest.mark.extras
@pytest.mark.core
def test_torch_loads_it_with_weights_only(tmp_path):
    import torch

    filters = {"observation_filter": RunningNorm(), "reward_filter": RunningReturnNorm()}
    with local(Drawn(), **THREE, **filters) as sampler, local(Drawn(), **THREE, **filters) as other:
        sampler.obtain_samples(30, env_update=SetTaskUpdate(Tasked, 2.0))
        sampler.obtain_fragments(5, 4, reset_options={"offset": [1.0]})
        torch.save({"sampler": sampler.state_dict(agents=True)}, tmp_path / "checkpoint.pt")
        other.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True)["sampler"])
        assert other.obtain_fragments(5) == sampler.obtain_fragments(5)
        assert other.filters == sampler.filters


def test_evaluations_in_between_leave_the_filters():
    with local(observation_filter=RunningNorm()) as sampler, local(observation_filter=RunningNorm()) as other:
        sampler.obtain_samples(30)
        evaluate(sampler=sampler, num_trajectories=2)
        other.load_state_dict(sampler.state_dict())
        assert other.obtain_samples(30) == sampler.obtain_samples(30)
