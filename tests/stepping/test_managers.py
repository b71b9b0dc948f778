"""The calls of managers of environments: the same for those in this process and in worker processes."""

import functools
import logging
import subprocess
import sys
import threading
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from streamsampler import PerWorker, timed
from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.errors import ClosedError, RolloutError, SerializationError, UsageError
from streamsampler.stepping.env_states import EnvState
from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.stepping.conftest import MODES
from tests.stepping.environments import Counting, Gated, Varied, gate

LONG = functools.partial(Counting, 9)
ONES = np.array([1, 1])


@pytest.mark.parametrize("autoreset", MODES)
def test_what_follows_the_end_of_an_episode(autoreset):
    manager: Any = SerialEnvManager(functools.partial(Counting, info_at=3), n_envs=2, seed=0, autoreset=autoreset)
    manager.reset()
    seen = [manager.step(np.array([1, 2])) for _ in range(3)]
    third = seen[-1]
    assert [steps.timesteps.tolist() for steps in seen] == [[1, 1], [2, 2], [3, 3]]
    assert third.terminated.all()
    assert third.rewards.tolist() == [1, 2] == third.actions.tolist()
    assert third.last_observations[:, 1].tolist() == [3, 3]
    assert third.previous_observations[:, 1].tolist() == [2, 2]
    assert third.observations[:, 1].tolist() == ([0, 0] if autoreset == "same_step" else [3, 3])
    noted = third.infos["final_info"] if autoreset == "same_step" else third.infos
    assert noted["note"].tolist() == [3, 3]
    if autoreset == "disabled":
        match = r"environment 0 .* NEEDS_RESET .*: its episode has ended, so call reset\(env_ids=\[0"
        with pytest.raises(UsageError, match=match):
            manager.step(ONES)
        assert manager.reset().episodes.tolist() == [1, 1]
    elif autoreset == "next_step":  # whose action is ignored
        begun = manager.step(ONES)
        assert [it.tolist() for it in (begun.timesteps, begun.episodes, begun.rewards)] == [[0, 0], [1, 1], [0, 0]]
    after = manager.step(ONES)
    assert after.timesteps.tolist() == after.episodes.tolist() == [1, 1]
    assert after.previous_observations[:, 1].tolist() == [0, 0]


@pytest.mark.parametrize("autoreset", MODES)
def test_so_many_episodes_are_run_and_no_more(autoreset):
    with SerialEnvManager(Counting, n_envs=2, seed=0, autoreset=autoreset, max_episodes=2) as manager:
        for _ in range(2):
            manager.reset()
            n_ended = 0
            while EnvState.FINISHED not in manager.states:
                n_ended += manager.step(ONES).ended.sum()
                if EnvState.NEEDS_RESET in manager.states:
                    manager.reset()
            assert n_ended == 4
            assert manager.states == (EnvState.FINISHED,) * 2


def test_some_environments_in_the_order_in_which_they_are_named(new_manager):
    manager = new_manager([Counting, functools.partial(Counting, info_at=1), Counting], n_envs=3, seed=0)
    assert manager.reset([2, 0, 1]).env_ids.tolist() == [2, 0, 1]
    steps = manager.step(np.array([5, 3]), [2, 0])
    assert steps.env_ids.tolist() == [2, 0]
    assert steps.rewards.tolist() == [5, 3] == steps.actions.tolist()
    manager.send({2: 4, 1: 6, 0: 1})
    assert manager.reset([0]).timesteps.tolist() == [0], "the step that was open is discarded"
    steps = manager.recv_from([2, 1])
    assert (steps.actions.tolist(), steps.rewards.tolist()) == ([4, 6], [4, 6])
    assert steps.previous_observations[:, 1].tolist() == [1, 0]
    assert (steps.infos["note"].tolist(), steps.infos["_note"].tolist()) == ([0, 1], [False, True])
    assert {env_id: seen[1] for env_id, seen in manager.ready.items()} == {0: 0, 1: 1, 2: 2}
    assert manager.observations()[:, 1].tolist() == [0, 1, 2]
    assert manager.wait()


def test_async_reset_waits_for_no_step_that_is_open(tmp_path):
    """Nor does `recv`, where another result is there: the step ends only after that."""
    envs = [functools.partial(Gated, tmp_path / "pipe"), Counting]
    with gate(tmp_path / "pipe") as let, EnvManager(envs, n_envs=2, n_workers=2, seed=0) as manager:
        manager.reset()
        manager.send(ONES)
        manager.async_reset([0], seed=[7], options={"a": 1})
        manager.async_reset([0])  # the same once more: what was given holds
        with pytest.raises(UsageError, match=r"environment 0 is .* does not wait for an action"):
            manager.send(np.array([1]), [0])
        assert manager.recv(min_envs=1).env_ids.tolist() == [1]
        assert len(manager.recv(timeout=0)) == 0
        manager.send(manager.random_actions([]), [])  # a loop goes on where nothing has arrived
        let()
        steps = manager.recv()
        assert (steps.env_ids.tolist(), steps.observations[0].tolist()) == ([0], [7, 0])
        assert manager.get_attr("options", [0]) == [{"a": 1}]
        assert (manager.stats.abandoned_trajectories, manager.stats.abandoned_timesteps) == (1, 1)


def test_min_envs_and_recv_timeout_of_the_manager_are_in_effect(tmp_path):
    envs = [Counting, Counting, functools.partial(Gated, tmp_path / "pipe")]
    options: dict[str, Any] = {"n_envs": 3, "n_workers": 3, "seed": 0, "min_envs": 2, "recv_timeout": 0.05}
    with gate(tmp_path / "pipe") as let, EnvManager(envs, **options) as manager:
        manager.reset()
        manager.send(np.array([1, 1, 1]))
        assert sorted(manager.recv(timeout=60).env_ids.tolist()) == [0, 1]
        assert manager.recv().env_ids.tolist() == []
        with pytest.raises(TimeoutError, match=r"environments \[2\] have no results after 0.01 s"):
            manager.recv_from([2], timeout=0.01)
        let()
        assert manager.recv_from([2]).timesteps.tolist() == [1]


def test_random_actions_are_functions_of_seed_and_environment():
    drawn = []
    for order in ([0, 1], [1, 0]):
        with SerialEnvManager(Varied, n_envs=2, seed=3) as manager:
            each = [manager.random_actions(order) for _ in range(4)]
            drawn.append([(it["choice"][order].tolist(), it["force"][order].tolist()) for it in each])
            manager.reset()
            nobodys = manager.random_actions([])
            parts = {key: (part.shape, part.dtype.name) for key, part in nobodys.items()}
            assert parts == {"choice": ((0,), "int64"), "force": ((0, 2), "float32")}
            assert len(manager.step(nobodys, [])) == 0
    assert drawn[0] == drawn[1]
    assert len({tuple(force) for _, both in drawn[0] for force in both}) == 8


def begins_of(manager, n_steps, first):
    """Return the seeds with which the episodes of each environment begin, where none takes more than one timestep."""
    seen = [first] + [manager.step(np.zeros(manager.n_envs, np.int64)) for _ in range(n_steps)]
    return [steps.observations[:, 0].astype(int).tolist() for steps in seen[::2]]


@pytest.mark.parametrize(
    ("seed", "first"),
    [
        (None, [TrajectorySeeds(7, 0)[0], TrajectorySeeds(7, 0)[1]]),
        ([5, 6], [5, 6]),
        ({1: 9}, [TrajectorySeeds(7, 0)[0], 9]),
        (4, [TrajectorySeeds(4, 0)[0], TrajectorySeeds(4, 0)[1]]),
    ],
)
def test_seeds_of_episodes(seed, first):
    """Those of the samplers; a reset may give others, from which later ones follow."""
    with SerialEnvManager(functools.partial(Counting, 1), n_envs=2, seed=7) as manager:
        begun = begins_of(manager, 4, manager.reset(seed=seed))
        assert begun[0] == first
        assert len({each[1] for each in begun}) == 3
        if seed is None:
            assert begun == [[TrajectorySeeds(7, 0)[2 * k + e] for e in (0, 1)] for k in range(3)]
            return
        again = begins_of(manager, 4, manager.reset(seed=seed))
        assert [each[1] for each in again] == [each[1] for each in begun]
        same = begins_of(manager, 4, manager.reset(seed=seed, every_episode=True))
        assert [each[1] for each in same] == [first[1]] * 3
        assert len({each[0] for each in same}) == (3 if isinstance(seed, dict) else 1)
        assert len({each[1] for each in begins_of(manager, 4, manager.reset(seed=4))}) == 3


def test_options_are_remembered_until_they_are_forgotten(new_manager):
    manager = new_manager(functools.partial(Counting, 1), n_envs=2, seed=0)
    manager.reset(options={"hard": True})
    for _ in range(2):
        manager.step(ONES)
    assert manager.get_attr("options") == [{"hard": True}] * 2
    manager.reset([1], options={"hard": False})
    assert manager.get_attr("options") == [{"hard": True}, {"hard": False}]
    manager.forget_options([1])
    for _ in range(2):
        manager.step(ONES)
    assert manager.get_attr("options") == [{"hard": True}, None]


def test_calls_and_attributes(new_manager):
    manager = new_manager(Counting, n_envs=3, seed=0)
    manager.reset()
    assert manager.call("set_level", 3, factor=2) == [6, 6, 6]
    manager.set_attr("level", [1, 2, 3])
    manager.set_attr("level", 5, [1])
    assert manager.get_attr("level", [2, 1, 0]) == [3, 5, 1]
    assert manager.render([1]) == ["frame 0"]
    with pytest.raises(AttributeError, match=r"environment 1 \(Counting\) has no attribute 'levle'"):
        manager.get_attr("levle", [1])
    manager.set_attr("levle", 3)  # as Gymnasium's vector environments do
    assert manager.get_attr("levle") == [3, 3, 3]


class Talking(Counting):
    """Logs and times what it does."""

    log = logging.getLogger("somebody.simulator")

    def reset(self, *, seed=None, options=None):
        self.log.warning("reset with %d", seed)
        with timed("setting up"):
            return super().reset(seed=seed, options=options)

    def step(self, action):
        self.log.info("timestep %d", self._t + 1)
        with timed("physics"):
            for _ in range(2):
                with timed("contacts"):
                    pass
            return super().step(action)

    def close(self):
        self.log.error("closed")


def messages(caplog):
    found = sorted(record.getMessage() for record in caplog.records if record.name == "somebody.simulator")
    caplog.clear()
    return found


def test_log_records_arrive_with_the_results(new_manager, caplog):
    manager = new_manager(Talking, n_envs=2, seed=0)
    with caplog.at_level(logging.INFO, "somebody.simulator"):
        manager.reset(seed=[4, 5])
        assert messages(caplog) == ["reset with 4", "reset with 5"]
        manager.step(ONES)
        assert messages(caplog) == ["timestep 1", "timestep 1"]
    with caplog.at_level(logging.ERROR, "somebody.simulator"):
        manager.reset()
        manager.step(ONES)
        assert messages(caplog) == []
        manager.close()
        assert messages(caplog) == ["closed", "closed"]


def test_accounts(new_manager):
    manager = new_manager(functools.partial(Talking, info_at=2), n_envs=3, seed=0)
    manager.reset()
    with timed("learn"):
        timed.gauge("loss", 0.5)
    ones = np.array([1, 1, 1])
    steps = [manager.step(ones) for _ in range(5)][1]  # three timesteps, a reset, and a timestep
    manager.send(ones)
    manager.reset([0, 1])
    stats = manager.stats
    assert (stats.kept_trajectories, stats.kept_timesteps) == (3, 12)
    assert (stats.abandoned_trajectories, stats.abandoned_timesteps) == (2, 2)
    assert (stats.failed_trajectories, stats.failures, stats.restarts, stats.lost_timesteps) == (0, 0, 0, 0)
    manager.recv()
    assert manager.stats.kept_timesteps == 13
    assert sum(manager.stats.worker_timesteps) == 15
    assert stats.seconds > 0
    assert stats.take_infos(steps, {"note": "sum", "missing": "mean"}) == {"note": 6.0}
    assert (stats.flat()["infos/note"], stats.flat()["kept_timesteps"]) == (6.0, 13)
    assert stats.take_infos(steps, {"note": "histogram"}) == {"note": 2.0}
    assert stats.histograms["note"].tolist() == [2.0, 2.0, 2.0]
    manager.close()
    tree = manager.stats.timers()
    step, reset = tree.children["step"], tree.children["reset"]
    physics = step.children["physics"]
    counts = physics.count, physics.children["contacts"].count, reset.children["setting up"].count
    assert counts == (15, 30, 8)
    assert 0 < physics.self_seconds < physics.seconds <= step.seconds
    assert 0 < reset.children["setting up"].seconds <= reset.seconds
    assert tree.timesteps == 15
    assert tree.children["script"].children["learn"].count == 1
    assert manager.stats.flat()["gauges/loss"] == 0.5


def test_what_environments_are_made_of():
    spec = gymnasium.spec("CartPole-v1")
    observations = [
        SerialEnvManager(envs, n_envs=2, seed=0).reset().observations.tolist()
        for envs in (spec, PerWorker([spec, "CartPole-v1"]), ["CartPole-v1", spec])
    ]
    assert observations[0] == observations[1] == observations[2]
    manager = SerialEnvManager([Counting, LONG], seed=0)
    assert (manager.n_envs, manager.get_attr("length")) == (2, [3, 9])
    for wrong in (Counting, "CartPole-v1", []):
        with pytest.raises(UsageError, match="number of environments is unknown: pass n_envs"):
            SerialEnvManager(wrong)


class Closable(Counting):
    closed = False

    def close(self):
        self.closed = True

    def step(self, action):
        assert not self.closed
        return super().step(action)


@pytest.mark.parametrize("new_manager", ["serial", pytest.param("processes", marks=pytest.mark.slow)], indirect=True)
def test_each_environment_is_one_of_its_own(new_manager):
    """Also after `close` and `launch`, of one that was passed."""
    shapes: list[Any] = [lambda env: env, lambda env: [env] * 3, lambda env: [Closable(5), env, env]]
    for shape in shapes:
        manager = new_manager(shape(Closable(5)), n_envs=3, seed=3)
        first = manager.reset().observations.tolist()
        manager.set_attr("level", 3)
        seen = [manager.step(np.ones(3, np.int64)).observations[:, 1].tolist() for _ in range(2)]
        assert seen == [[1, 1, 1], [2, 2, 2]]
    manager.close()
    manager.close()
    with pytest.raises(ClosedError, match=r"call manager.launch\(\)"):
        manager.step(np.zeros(3, np.int64))
    manager.launch()
    with pytest.raises(UsageError, match="launched already"):
        manager.launch()
    assert manager.get_attr("level") == [0, 0, 0]
    assert manager.reset().observations.tolist() == first
    assert manager.step(np.ones(3, np.int64)).timesteps.tolist() == [1, 1, 1]


@pytest.mark.parametrize("kind", ["lambda", "list"])
def test_a_function_that_gives_an_environment_again_is_refused(new_manager, kind):
    env = Counting(5)
    with pytest.raises((UsageError, RolloutError), match=r"must make a new environment each time.*same Counting again"):
        new_manager([lambda: env] * 3 if kind == "list" else lambda: env, n_envs=3, seed=0).reset()


def test_an_environment_that_cannot_be_made_anew(caplog):
    env = Counting(5)
    with SerialEnvManager(lambda: env, n_envs=1, seed=0) as manager:
        manager.reset()
        assert manager.step(np.array([9])).failed.tolist() == [True]
    assert "must make a new environment each time" in caplog.text
    env.lock = threading.Lock()  # type: ignore[attr-defined]
    with SerialEnvManager([env], n_envs=1, seed=0) as manager:
        manager.reset()
        manager.close()
        with pytest.raises(SerializationError, match="environment 0 cannot be made again"):
            manager.launch()


class Numbered(Counting):
    def __init__(self, env_number, worker_number):
        super().__init__()
        self.numbers = env_number, worker_number


def test_factories_may_take_the_number_of_the_environment(new_manager):
    manager = new_manager(Numbered, n_envs=3, seed=0)
    n_workers = getattr(manager, "n_workers", 1)
    assert manager.get_attr("numbers") == [(env_id, env_id * n_workers // 3) for env_id in range(3)]
    manager = SerialEnvManager(functools.partial(Numbered, env_number=7), n_envs=2, seed=0)
    assert [number for number, _ in manager.get_attr("numbers")] == [7, 7]


class Reusing(gymnasium.Env):
    """Hands out one observation and one info, and changes both in place."""

    observation_space = spaces.Box(-10, 10, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self):
        self.seen = np.zeros(2)
        self.info: Any = {"t": np.zeros(1), "deep": {"x": [0]}}

    def show(self, t):
        self.seen[:] = self.info["t"][0] = self.info["deep"]["x"][0] = t

    def reset(self, *, seed=None, options=None):
        self.t = 0
        self.show(-1)
        return self.seen, self.info

    def step(self, action):
        self.t += 1
        self.show(self.t)
        return self.seen, 1.0, self.t == 2, False, self.info


@pytest.mark.parametrize("autoreset", MODES)
def test_data_are_copied_before_anything_else_runs(new_manager, autoreset):
    manager = new_manager(Reusing, n_envs=2, seed=0, autoreset=autoreset)
    kept = [manager.reset(), *(manager.step(np.zeros(2, np.int64)) for _ in range(2))]
    for steps, t in zip(kept, (-1, 1, 2), strict=True):
        assert steps.last_observations[:, 0].tolist() == [t, t]
        ends = t == 2 and autoreset == "same_step"
        for infos, shown in ((steps.infos["final_info"], t), (steps.infos, -1)) if ends else ((steps.infos, t),):
            assert infos["t"][:, 0].tolist() == [shown, shown]
            assert [x[0] for x in infos["deep"]["x"]] == [shown, shown]


def is_view(array):
    return array.base is not None and not array.flags.writeable


def test_without_copies_a_view_holds_until_the_next_action(new_manager):
    manager = new_manager(LONG, n_envs=3, seed=5, copy=False)
    first = manager.reset()
    second = manager.step(np.zeros(3, np.int64))
    assert second.previous_observations[:, 1].tolist() == first.observations[:, 1].tolist() == [0, 0, 0]
    some = manager.step(np.zeros(2, np.int64), [0, 2]).observations
    assert second.previous_observations[:, 1].tolist() == [2, 0, 2]  # those of environments 0 and 2 are overwritten
    assert second.observations[:, 1].tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="read-only"):
        second.observations[0] = 0
    mixed = manager.step(np.zeros(3, np.int64)).observations
    assert not is_view(some), "they lie not one after the other"
    assert not is_view(mixed), "they lie not in the same slot"
    assert mixed[:, 1].tolist() == [3, 2, 3]
    assert is_view(manager.step(np.zeros(1, np.int64), [1]).observations)


def test_without_stable_baselines3_the_error_says_how_to_install_it():
    code = (
        "import sys; sys.modules['stable_baselines3'] = None\n"
        "from streamsampler import SerialEnvManager\n"
        "manager = SerialEnvManager('CartPole-v1', n_envs=1, autoreset='same_step')\n"
        "try:\n    manager.sb3_env()\nexcept ImportError as error:\n    print(error)"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.startswith("sb3_env() needs Stable-Baselines3: pip install stable-baselines3 (in a clone")
