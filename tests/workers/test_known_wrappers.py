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
from tests.tiers import mostly_slow
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


def cart_pole():
    return gymnasium.make(CARTPOLE)


def minigrid(name, *arguments):
    minigrid_wrappers = pytest.importorskip("minigrid.wrappers")
    env = getattr(minigrid_wrappers, name)(gymnasium.make("MiniGrid-Empty-Random-6x6-v0"), *arguments)
    return minigrid_wrappers.ImgObsWrapper(env)


def frozen(wrapper):
    env = wrapper(cart_pole())
    env.update_running_mean = False
    return env


STATEFUL = {
    "observations": lambda: wrappers.NormalizeObservation(cart_pole()),
    "rewards": lambda: wrappers.TimeAwareObservation(wrappers.NormalizeReward(cart_pole())),
    "lives": lambda: pytest.importorskip("stable_baselines3.common.atari_wrappers").EpisodicLifeEnv(Lives()),
    "actions": lambda: minigrid("ActionBonus"),
    "positions": lambda: minigrid("PositionBonus"),
    "seeds": lambda: minigrid("ReseedWrapper", (1, 2, 3, 4, 5)),
}
FINE = {
    "frames": lambda: wrappers.FrameStackObservation(cart_pole(), 4),
    "delay": lambda: wrappers.DelayObservation(cart_pole(), 2),
    "time": lambda: wrappers.TimeAwareObservation(cart_pole()),
    "sticky": lambda: wrappers.StickyAction(cart_pole(), 0.5, (1, 3)),
    "statistics": lambda: wrappers.RecordEpisodeStatistics(cart_pole()),
    "maximum": lambda: wrappers.MaxAndSkipObservation(cart_pole(), 3),
    "one seed": lambda: minigrid("ReseedWrapper", (1,)),
    "frozen observations": lambda: frozen(wrappers.NormalizeObservation),
    "frozen rewards": lambda: frozen(wrappers.NormalizeReward),
}


@pytest.mark.filterwarnings("ignore:.*ReseedWrapper")
@pytest.mark.parametrize("name", [*mostly_slow(STATEFUL, 3), *mostly_slow(FINE, 4)])
def test_wrappers_that_carry_something_are_known_as_the_check_finds_it(name, monkeypatch):
    make = {**STATEFUL, **FINE}[name]
    words = stateful_wrapper(make())
    assert (" is wrapped by " in words and ". Instead, " in words) if name in STATEFUL else words == ""
    monkeypatch.setattr(purity, "stateful_wrapper", lambda env: "")
    worker = DefaultWorker(context_of(check="error"))
    worker.update_env(as_env_update(make))
    space = worker.spaces[1]
    worker.update_agent(lambda _: space.sample() if isinstance(space, spaces.Box) else np.random.randint(space.n))  # type: ignore[attr-defined]
    space.seed(0)
    checked = purity.check_purity(worker, 1, TrajectorySeeds(0, 1).of, purity.PurityCheck())
    assert ("came out differently" in checked.finding) == (name in STATEFUL)
    assert checked.timesteps > 0


def test_wrappers_of_vector_environments_and_inside_them():
    plain = gymnasium.make_vec(CARTPOLE, num_envs=2)
    inside = gymnasium.make_vec(
        CARTPOLE, num_envs=2, vectorization_mode="sync", wrappers=[wrappers.NormalizeObservation]
    )
    for env in (vector.NormalizeObservation(plain), vector.NormalizeReward(plain), inside):
        assert f"{CARTPOLE} is wrapped by Normalize" in stateful_wrapper(env)
    settled = vector.NormalizeReward(plain)
    settled.update_running_mean = False
    assert stateful_wrapper(settled) == stateful_wrapper(plain) == ""


def test_what_is_not_known():
    class NormalizeObservation(gymnasium.Wrapper):
        """Divides by a constant: another class of the same name."""

    class Bare:
        unwrapped = object()

    assert stateful_wrapper(NormalizeObservation(cart_pole())) == ""
    assert (stateful_wrapper(Bare()), files_of([Bare()]), name_of_env(Bare())) == ("", (), "object")
    assert list(known_wrappers.chain_of(None)) == []


def test_a_kind_is_the_classes_and_the_id():
    one, same = cart_pole(), gymnasium.make(CARTPOLE, render_mode="rgb_array")
    assert kind_of(one) == kind_of(same) != kind_of(gymnasium.make("Acrobot-v1"))
    assert kind_of(one) != kind_of(wrappers.TimeAwareObservation(one))
    assert kind_of(Lives()) != kind_of(one)
    assert (name_of_env(one), name_of_env(Lives())) == (CARTPOLE, "Lives")


def test_where_a_monitor_writes(tmp_path):
    monitor = pytest.importorskip("stable_baselines3.common.monitor").Monitor
    env = monitor(cart_pole(), str(tmp_path / "log"))
    assert files_of([env, cart_pole()]) == (str(tmp_path / "log.monitor.csv"),)
    env.close()
    assert files_of([monitor(cart_pole())]) == ()
