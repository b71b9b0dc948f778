"""An agent in the sampler's process: the batches of `VecWorker`, whatever the number of processes, and their losses."""

import functools
import itertools
import logging
import os
import pickle
import random
import re
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, NewEnvUpdate, VecWorker
from streamsampler.data.trees import same
from streamsampler.errors import RolloutError, SamplerError, UsageError, WorkerDiedError
from streamsampler.filters import RunningNorm
from tests.scripted.agents import Attentive, Balancing, Independent, RememberingAlone, Rowwise, Sampling
from tests.scripted.envs import GlobalNoise, Nested
from tests.stepping.environments import Graded, Perishing, Strolling

SHORTER = NewEnvUpdate(gymnasium.make, {"id": "CartPole-v1", "max_episode_steps": 12})
N_ENVS = 7


def in_parent(agents, envs, n_workers, **options):
    options = {"seed": 71, "worker_args": {"n_envs": N_ENVS}, **options}
    return MultiprocessingSampler(agents, envs, n_workers=n_workers, inference="parent", **options)


def reference(agents, envs, **options):
    options = {"seed": 71, "worker_args": {"n_envs": N_ENVS}, "worker_class": VecWorker, **options}
    return LocalSampler(agents, envs, **options)


def calls_of_all_kinds(sampler):
    return [
        sampler.obtain_samples(150),
        sampler.obtain_trajectories(9, agent_update=np.array([0.1, 0.5, 3.0, 2.0])),
        sampler.obtain_samples(100, agent_update=Rowwise((0.0, 0.0, -1.0, 0.0)), env_update=SHORTER),
        *itertools.islice(sampler.stream(), 8),
        sampler.obtain_trajectories(seeds=[5, 3, 5, 8], reset_options={"low": -0.01, "high": 0.01}),
        sampler.obtain_samples(1),
    ]


@functools.cache
def expected_calls():
    with reference(Rowwise(), "CartPole-v1") as sampler:
        return calls_of_all_kinds(sampler)


@pytest.mark.parametrize("n_workers", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2, 7))])
def test_batches_are_those_of_vec_worker_for_any_number_of_processes(n_workers):
    with in_parent(Rowwise(), "CartPole-v1", n_workers) as sampler:
        assert calls_of_all_kinds(sampler) == expected_calls()


KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "blocks": (Balancing(), "CartPole-v1", {}),
    "longer blocks": (Rowwise(), "CartPole-v1", {"worker_args": {"n_envs": 3, "block_size": 5}}),
    "draws in blocks": (Sampling(), "CartPole-v1", {}),
    "one by one, nested": (Attentive(), Nested, {}),
    "one by one in lanes": (Independent(Attentive()), Nested, {"max_episode_length": 4}),
    "a memory": (RememberingAlone(), "CartPole-v1", {}),
    "a filter": (Rowwise(), "CartPole-v1", {"observation_filter": RunningNorm(), "max_episode_length": 9}),
    "actions of another dtype": (Strolling.Agent(), Strolling, {}),
}


@pytest.mark.parametrize(
    "kind", ["actions of another dtype", *(pytest.param(kind, marks=pytest.mark.slow) for kind in [*KINDS][:-1])]
)
def test_all_kinds_of_agents_and_environments(kind):
    agent, env, options = KINDS[kind]
    batches = []
    for make in (reference, functools.partial(in_parent, n_workers=2)):
        with make(agent, env, **options) as sampler:
            batches.append([sampler.obtain_trajectories(9), sampler.obtain_samples(40)])
    assert batches[0] == batches[1]


class Dragging(Strolling):
    """Takes its time for each step of half of the trajectories."""

    def reset(self, *, seed=None, options=None):
        self.drags = seed % 2
        return super().reset(seed=seed)

    def step(self, action):
        if self.drags:
            threading.Event().wait(0.02)
        return super().step(action)


@pytest.mark.slow
def test_what_was_given_up_does_not_take_the_results_of_what_comes_next():
    """Environments that are busy with a stream that was left are waited for while others begin the next call."""
    batches = []
    for make in (reference, functools.partial(in_parent, n_workers=4)):
        with make(Strolling.Agent(), Dragging, check=None) as sampler:
            for _ in range(3):
                next(iter(sampler.stream()))
                batches.append(sampler.obtain_trajectories(9))
    assert batches[:3] == batches[3:]


# ---------------------------------------------------------------------- losses


@functools.cache
def expected_strolls():
    with reference(Strolling.Agent(), Strolling) as sampler:
        return [sampler.obtain_trajectories(20), sampler.obtain_samples(60)]


@pytest.mark.parametrize("how", ["kill", pytest.param("hang", marks=pytest.mark.slow)])
def test_losses_change_nothing(tmp_path, how, caplog):
    limits = {"step_timeout": 2.0} if how == "hang" else {}
    kwargs = {"folder": tmp_path, "times": 3, "how": how}
    with in_parent(Strolling.Agent(), Perishing, 2, env_kwargs=kwargs, check=None, **limits) as sampler:
        assert [sampler.obtain_trajectories(20), sampler.obtain_samples(60)] == expected_strolls()
        assert len(list(tmp_path.iterdir())) == 3
        assert (restarts := sampler.stats.restarts) >= 1
        assert restarts <= 3 or how == "hang"  # to lose others as well, which were slow, changes nothing
        assert sampler.stats.lost_timesteps > 0
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * restarts
    assert "a new one takes its place" in caplog.text


@pytest.mark.slow
def test_losses_beyond_the_quota_are_one_error_that_lists_them(tmp_path):
    kwargs = {"folder": tmp_path, "times": 9}
    with in_parent(Strolling.Agent(), Perishing, 2, env_kwargs=kwargs, check=None, max_restarts=2) as sampler:
        with pytest.raises(WorkerDiedError, match="SIGKILL") as caught:
            sampler.obtain_trajectories(20)
        assert len(caught.value.incidents) == 3
        assert "max_restarts is 2" in str(caught.value)
        for number in range(9):
            (tmp_path / str(number)).touch()
        assert sampler.obtain_trajectories(20).n_trajectories == 20


class StrollingInBlocks(Strolling.Agent):
    row_independent = False


@pytest.mark.parametrize("agent", [Strolling.Agent, StrollingInBlocks])
def test_trajectories_that_cannot_be_restored_are_run_again_from_their_seeds(tmp_path, caplog, agent):
    kwargs = {"folder": tmp_path, "how": "forget"}
    with in_parent(agent(), Perishing, 2, env_kwargs=kwargs, check=None) as sampler:
        batch = sampler.obtain_trajectories(20)
        stats = sampler.stats
        assert (stats.restarts, len(batch)) == (1, 20)
        assert sum(stats.worker_timesteps) == stats.kept_timesteps + stats.lost_timesteps + stats.abandoned_timesteps
        assert stats.lost_timesteps > 0
    with reference(agent(), Strolling) as sampler:
        first, other = (sampler.obtain_trajectories(seeds=[seed + k for seed in batch.seeds]) for k in (0, 1))
    as_first, as_other = (
        [same(part.observations, whole.observations) for part, whole in zip(batch, wholes, strict=True)]
        for wholes in (first, other)
    )
    assert all(np.logical_or(as_first, as_other)), "each is a whole trajectory of one environment"
    assert any(as_other), "some ran in what took the environment's place"
    loss, again = [record.message for record in caplog.records]
    assert "a new one takes its place" in loss
    assert re.search("environment . was lost .*did something else.*Trajectories under way are run again", again)


# ---------------------------------------------------------------------- what raises


class Refusing(Strolling):
    def step(self, action):
        if self.left == 9:
            raise ZeroDivisionError("the bearings are worn")
        return super().step(action)


class Faulty(Strolling.Agent):
    def get_actions(self, observations):
        if (observations > 2).any():
            raise OverflowError("too far out")
        return super().get_actions(observations)


def last_cause_of(error):
    return error if error.__cause__ is None else last_cause_of(error.__cause__)


@pytest.mark.parametrize(("agent", "env"), [(Strolling.Agent(), Refusing), (Faulty(), Strolling)])
@pytest.mark.slow
def test_what_raises_is_the_error_of_vec_worker(agent, env):
    errors = []
    for make in (reference, functools.partial(in_parent, n_workers=2)):
        with make(agent, env, check=None) as sampler:
            with pytest.raises(RolloutError) as caught:
                sampler.obtain_trajectories(20)
            errors.append(caught.value)
            with pytest.raises(RolloutError):
                sampler.obtain_trajectories(20)
            assert (
                sampler.obtain_trajectories(5, agent_update=Strolling.Agent(), env_update=Strolling).n_trajectories == 5
            )
    expected, error = errors
    # Which other trajectories the agent saw in that call depends on timing.
    assert str(error).splitlines()[0] == str(expected).splitlines()[0]
    assert (error.phase, error.trajectory) == (expected.phase, expected.trajectory)
    assert type(error.original) is type(expected.original)
    assert error.original.args == expected.original.args
    assert env is Strolling or 'raise ZeroDivisionError("the bearings are worn")' in str(last_cause_of(error))


def test_processes_whose_spaces_differ_are_an_error():
    with (
        in_parent(Rowwise(), lambda worker_number=0: Graded(2 + worker_number), 2, check=None) as sampler,
        pytest.raises(SamplerError, match=r"observation space of environment 4 .*must have the same observation space"),
    ):
        sampler.obtain_trajectories(1)


class Gated(gymnasium.Env):
    """Is far out at its end, where the environments of process 0 wait for the agent.

    Those of process 1 begin when the agent was asked for the first actions of both others.

    Args:
        folder: Where three pipes are.
        worker_number: Of the process.
    """

    observation_space = gymnasium.spaces.Box(-10.0, 10.0, (1,), np.float64)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,), np.float64)
    n_begun = n_waiting = 0  # how many environments of this process were reset, and have stepped

    def __init__(self, folder, worker_number=0):
        self.folder, self.worker_number = folder, worker_number

    def reset(self, *, seed=None, options=None):
        Gated.n_begun += 1
        if self.worker_number == 0:
            return np.full(1, 1.0), {}
        if Gated.n_begun == 1:
            with (self.folder / "begun").open("rb") as pipe:
                pipe.read(1)
        return np.zeros(1), {}

    def step(self, action):
        if self.worker_number == 0:
            Gated.n_waiting += 1
            if Gated.n_waiting == 1:
                (self.folder / "asked").read_text()
            elif Gated.n_waiting == 2:  # so the first one's observation is in the parent's memory
                (self.folder / "stepped").write_text("!")
        return np.full(1, 5.0), 0.0, self.worker_number == 0, False, {}


class FarOut(Strolling.Agent):
    """Raises on what is far out, once both environments of process 0 have stepped."""

    def __init__(self, folder):
        self.folder, self.is_asked_again = folder, False
        self.pipe = os.open(folder / "begun", os.O_RDWR)  # so that a write never waits for a reader

    def get_actions(self, observations):
        if (observations == 1).all():  # those of process 0 alone, which are half of all, and so no fewer than both
            os.write(self.pipe, b"!")
        if (observations > 4).any():
            if not self.is_asked_again:
                self.is_asked_again = True
                (self.folder / "asked").write_text("!")
                (self.folder / "stepped").read_text()
            raise OverflowError("too far out")
        return np.zeros((len(observations), 1)), {}


def test_the_trajectory_that_is_named_is_one_that_the_agent_was_shown(tmp_path):
    for name in ("begun", "asked", "stepped"):
        os.mkfifo(tmp_path / name)
    agent = FarOut(tmp_path)
    with in_parent(agent, Gated, 2, env_kwargs={"folder": tmp_path}, check=None, worker_args={"n_envs": 4}) as sampler:
        with pytest.raises(RolloutError, match="choosing an action in trajectory 2 ") as caught:
            sampler.obtain_trajectories(4)
        assert caught.value.original.__notes__ == ["get_actions had the observations of trajectories 2, 3"]
    os.close(agent.pipe)


def test_an_environment_that_draws_from_global_generators_is_an_error():
    with (
        in_parent(Attentive(), GlobalNoise, 2, check=None) as sampler,
        pytest.raises(RolloutError, match="drew from a global generator"),
    ):
        sampler.obtain_trajectories(9)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"inference": "here"}, '"worker" or "parent", got \'here\''),
        ({"engine": "queues"}, "takes no engine='queues'"),
        ({"max_worker_memory": 1 << 30}, "takes no max_worker_memory"),
        ({"n_workers": 9}, "only 8 environments"),
        ({"worker_class": type("Own", (VecWorker,), {})}, "takes no worker_class=Own"),
        ({"agents": [Rowwise(), Rowwise()]}, "one agent"),
        ({"envs": ["CartPole-v1", "CartPole-v1"]}, "one environment"),
        ({"on_failure": "drop"}, "cannot leave out"),
        ({"staleness": 1}, "takes no staleness: .*Leave one of the two out"),
        ({"order": "arrival"}, "takes no order: .*Leave one of the two out"),
    ],
)
def test_arguments_that_cannot_work_are_errors(options, match):
    given = {"agents": Rowwise(), "envs": "CartPole-v1", "n_workers": 2, "inference": "parent", **options}
    with pytest.raises(UsageError, match=match):
        MultiprocessingSampler(given.pop("agents"), given.pop("envs"), **given)


def test_calls_that_cannot_work_are_errors():
    with in_parent(Rowwise(), "CartPole-v1", 2) as sampler:
        with pytest.raises(UsageError, match="of 9 environments"):
            sampler.obtain_fragments(5, 9)
        with pytest.raises(UsageError, match=r'one agent, .*inference="worker"'):
            sampler.obtain_samples(1, agent_update=[Rowwise(), Rowwise()])
        with pytest.raises(UsageError, match=r"pass tuple\(…\) of the list"):
            sampler.obtain_samples(1, agent_update=[0.1, 0.2, 0.3, 0.4])
        with pytest.raises(RolloutError, match="vector environment"):
            sampler.obtain_samples(1, env_update=lambda: gymnasium.make_vec("CartPole-v1", num_envs=2))


@pytest.mark.slow
def test_a_sampler_pickles_and_says_which_processes_it_has():
    with in_parent(Rowwise(), "CartPole-v1", 2) as sampler:
        sampler.obtain_samples(30)
        assert len(set(sampler.worker_pids()) | {os.getpid()}) == 3
        with pickle.loads(pickle.dumps(sampler)) as twin:
            assert twin.obtain_trajectories(3) == sampler.obtain_trajectories(3)


class Service(Strolling.Agent):
    """Cannot be pickled, and acts by what its owner sets."""

    def __init__(self):
        self.lock = threading.Lock()
        self.factor = 1.0

    def get_actions(self, observations):
        with self.lock:
            actions, infos = super().get_actions(observations)
            return (self.factor * actions).astype(np.float32), infos


def test_the_agent_is_the_one_that_was_passed_and_no_copy():
    service = Service()
    with in_parent(service, Strolling, 2, check=None) as sampler:
        before = sampler.obtain_trajectories(5)
        service.factor = 0.5
        after = sampler.obtain_trajectories(5)
        np.testing.assert_array_equal(after.actions[:1], 0.5 * np.tanh(after.observations[:1] + 0.1).astype(np.float32))
        assert not np.array_equal(before.actions, after.actions[: len(before.actions)])
        other = Service()
        sampler.obtain_trajectories(5, agent_update=other)
        other.factor = 0.0
        assert not sampler.obtain_trajectories(5).actions.any()


@pytest.mark.slow
def test_the_programs_own_generators_are_left_alone():
    with in_parent(Sampling(), "CartPole-v1", 2) as sampler:
        random.seed(3)
        expected = random.random()
        random.seed(3)
        sampler.obtain_samples(30)
        assert random.random() == expected


class Mixing(Strolling.Agent):
    """Says that its rows are independent, and adds the first one to all."""

    def get_actions(self, observations):
        return np.tanh(observations + observations[:1]).astype(np.float32), {}


def test_an_agent_that_fails_the_probe_is_refused_without_a_block_size():
    worker_args = {"n_envs": 4, "block_size": 4}
    with reference(Mixing(), Strolling, check=None, worker_args=worker_args) as sampler:
        expected = [sampler.obtain_trajectories(9), sampler.obtain_samples(40)]
    with in_parent(Mixing(), Strolling, 2, check=None, worker_args=worker_args) as sampler:
        assert [sampler.obtain_trajectories(9), sampler.obtain_samples(40)] == expected
    with in_parent(Mixing(), Strolling, 2, check=None) as sampler, pytest.raises(RolloutError, match="row_independent"):
        sampler.obtain_trajectories(1)


class Weights:
    """Parameters that no pickle may have."""

    def __init__(self, factor):
        self.factor = factor

    def __reduce__(self):
        raise AssertionError("parameters are pickled")


class Unsent(Service):
    """Has parameters that stay in this process."""

    def __init__(self):
        super().__init__()
        self.weights = Weights(1.0)

    def get_actions(self, observations):
        threading.Event().wait(0.001)
        actions, infos = super().get_actions(observations)
        return (self.weights.factor * actions).astype(np.float32), infos


def test_parameters_do_not_travel_and_the_agents_time_is_of_this_process():
    agent = Unsent()
    with in_parent(agent, Strolling, 2, check=None) as sampler:
        sampler.obtain_trajectories(5)
        agent.weights = Weights(0.0)
        batch = sampler.obtain_trajectories(5)
        assert not batch.actions.any()
        times = sampler.stats.workers[0]
        assert times.agent > 0.001 * batch.lengths.max()
        assert times.step > 0.0
