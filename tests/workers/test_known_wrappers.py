"""Recognising wrappers that do not go with workers."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces, wrappers
from gymnasium.wrappers import vector

from streamsampler.core.seeding import TrajectorySeeds
from streamsampler.environments.updates import as_env_update
from streamsampler.workers import known_wrappers, purity
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.explain import name_of_env
from streamsampler.workers.known_wrappers import files_of, kind_of, stateful_wrapper
from tests.workers.contexts import context_of

CARTPOLE = "CartPole-v1"


class Lives(gymnasium.Env):
    """Loses one of three lives every fourth step."""

    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)

    @property
    def ale(self):
        return self

    def lives(self):
        return 3 - self.t // 4

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, self.lives() == 0, False, {}


def episodic_life():
    return pytest.importorskip("stable_baselines3.common.atari_wrappers").EpisodicLifeEnv(Lives())


def minigrid(name, *arguments):
    pytest.importorskip("minigrid")
    import minigrid.wrappers

    env = getattr(minigrid.wrappers, name)(gymnasium.make("MiniGrid-Empty-Random-6x6-v0"), *arguments)
    return minigrid.wrappers.ImgObsWrapper(env)


STATEFUL = {
    "observations": lambda: wrappers.NormalizeObservation(gymnasium.make(CARTPOLE)),
    "rewards": lambda: wrappers.TimeAwareObservation(wrappers.NormalizeReward(gymnasium.make(CARTPOLE))),
    "lives": episodic_life,
    "actions": lambda: minigrid("ActionBonus"),
    "positions": lambda: minigrid("PositionBonus"),
    "seeds": lambda: minigrid("ReseedWrapper", (1, 2, 3, 4, 5)),
}


def check(make_env, monkeypatch):
    """Run the check itself, without looking for known wrappers."""
    monkeypatch.setattr(purity, "stateful_wrapper", lambda env: "")
    worker = DefaultWorker(context_of(check="error"))
    worker.update_env(as_env_update(make_env))
    space = worker.spaces[1]
    worker.update_agent(lambda _: space.sample() if isinstance(space, spaces.Box) else np.random.randint(space.n))  # type: ignore[attr-defined]
    space.seed(0)
    return purity.check_purity(worker, 1, TrajectorySeeds(0, 1).of, purity.PurityCheck())


@pytest.mark.filterwarnings("ignore:.*ReseedWrapper")
@pytest.mark.parametrize("name", STATEFUL)
def test_wrappers_that_carry_something_are_known_and_the_check_finds_it(name, monkeypatch):
    env = STATEFUL[name]()
    assert " is wrapped by " in stateful_wrapper(env)
    assert ". Instead, " in stateful_wrapper(env)
    assert "came out differently" in check(STATEFUL[name], monkeypatch).finding


FINE = {
    "frames": lambda: wrappers.FrameStackObservation(gymnasium.make(CARTPOLE), 4),
    "delay": lambda: wrappers.DelayObservation(gymnasium.make(CARTPOLE), 2),
    "time": lambda: wrappers.TimeAwareObservation(gymnasium.make(CARTPOLE)),
    "sticky": lambda: wrappers.StickyAction(gymnasium.make(CARTPOLE), 0.5, (1, 3)),
    "statistics": lambda: wrappers.RecordEpisodeStatistics(gymnasium.make(CARTPOLE)),
    "maximum": lambda: wrappers.MaxAndSkipObservation(gymnasium.make(CARTPOLE), 3),
    "one seed": lambda: minigrid("ReseedWrapper", (1,)),
}
if hasattr(wrappers, "RepeatAction"):  # not in the lowest version of Gymnasium
    FINE["repeat"] = lambda: wrappers.RepeatAction(gymnasium.make(CARTPOLE), 3)


def frozen(wrapper):
    def make():
        env = wrapper(gymnasium.make(CARTPOLE))
        env.update_running_mean = False
        return env

    return make


FINE["frozen observations"] = frozen(wrappers.NormalizeObservation)
FINE["frozen rewards"] = frozen(wrappers.NormalizeReward)


@pytest.mark.filterwarnings("ignore:.*ReseedWrapper")
@pytest.mark.parametrize("name", FINE)
def test_wrappers_that_begin_again_are_let_be(name, monkeypatch):
    assert stateful_wrapper(FINE[name]()) == ""
    checked = check(FINE[name], monkeypatch)
    assert checked.finding == ""
    assert checked.timesteps > 0


def test_wrappers_of_vector_environments_and_inside_them():
    plain = gymnasium.make_vec(CARTPOLE, num_envs=2)
    inside = gymnasium.make_vec(
        CARTPOLE, num_envs=2, vectorization_mode="sync", wrappers=[wrappers.NormalizeObservation]
    )
    assert stateful_wrapper(plain) == ""
    for env in (vector.NormalizeObservation(plain), vector.NormalizeReward(plain), inside):
        assert f"{CARTPOLE} is wrapped by Normalize" in stateful_wrapper(env)
    settled = vector.NormalizeReward(plain)
    settled.update_running_mean = False
    assert stateful_wrapper(settled) == ""


def test_another_class_of_the_same_name_is_not_taken_for_it():
    class NormalizeObservation(gymnasium.Wrapper):
        """Divides by a constant."""

    assert stateful_wrapper(NormalizeObservation(gymnasium.make(CARTPOLE))) == ""


def test_a_kind_is_the_classes_and_the_id():
    one, same = gymnasium.make(CARTPOLE), gymnasium.make(CARTPOLE, render_mode="rgb_array")
    assert kind_of(one) == kind_of(same) != kind_of(gymnasium.make("Acrobot-v1"))
    assert kind_of(one) != kind_of(wrappers.TimeAwareObservation(one))
    assert kind_of(Lives()) != kind_of(one)
    assert (name_of_env(one), name_of_env(Lives())) == (CARTPOLE, "Lives")


def test_where_a_monitor_writes(tmp_path):
    monitor = pytest.importorskip("stable_baselines3.common.monitor").Monitor
    env = monitor(gymnasium.make(CARTPOLE), str(tmp_path / "log"))
    assert files_of([env, gymnasium.make(CARTPOLE)]) == (str(tmp_path / "log.monitor.csv"),)
    env.close()
    assert files_of([monitor(gymnasium.make(CARTPOLE))]) == ()


def test_an_environment_that_tells_nothing_of_itself():
    class Bare:
        unwrapped = object()

    assert (stateful_wrapper(Bare()), files_of([Bare()]), name_of_env(Bare())) == ("", (), "object")
    assert list(known_wrappers.chain_of(None)) == []
