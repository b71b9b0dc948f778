"""Parameters of environments: drawn from each trajectory's seed, set before its reset, told in its infos."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from streamsampler import LocalSampler, MultiprocessingSampler, PerWorker, SetParameters, VecWorker, replay
from streamsampler.core.serialization import dumps
from streamsampler.environments import Choice, Distribution, LogUniform, Normal, Uniform
from streamsampler.errors import RolloutError, UsageError
from streamsampler.testing import Fault, Faults
from tests.scripted.agents import Independent, always_zero
from tests.scripted.envs import AnyLength


class Weighed(AnyLength):
    """Has attributes, and shows them in its rewards."""

    def __init__(self):
        super().__init__()
        self.mass, self.size, self._hidden = 3.0, 7.0, 1.0

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, self.mass + 100.0 * self.size, *rest


class WithMethod(Weighed):
    def set_parameters(self, parameters):
        self.mass, self.size = parameters["mass"], parameters.pop("size", 7.0)


class WithTask(Weighed):
    def set_task(self, task):
        self.mass, self.size = task["mass"], task.get("size", 7.0)


def untyped(value: Any) -> Any:
    return value


DRAWN = {"mass": Uniform(1, 2), "size": 0.5}


def same(first, second):
    for name in ("observations", "rewards", "lengths", "last_observations"):
        assert np.array_equal(getattr(first, name), getattr(second, name)), name
    for name, values in first.episode_infos["parameters"].items():
        assert np.array_equal(values, second.episode_infos["parameters"][name])


def check_drawn(batch):
    drawn = batch.episode_infos["parameters"]
    assert ((drawn["mass"] >= 1) & (drawn["mass"] <= 2)).all()
    assert len(set(drawn["mass"].tolist())) == len(batch)
    assert set(drawn["size"].tolist()) == {0.5}
    assert batch.rewards.tolist() == np.repeat(drawn["mass"] + 50.0, batch.lengths).tolist()


@pytest.mark.parametrize(
    "env", [Weighed, *(pytest.param(env, marks=pytest.mark.slow) for env in (WithMethod, WithTask))]
)
def test_parameters_are_drawn_from_the_seed_whatever_runs_the_trajectory(env):
    with LocalSampler(always_zero, SetParameters(DRAWN, env), seed=1) as one:
        expected = one.obtain_trajectories(10)
        check_drawn(expected)
        assert one.replay(1, 4, recorded=expected).same
        after = one.obtain_trajectories(10)
        check_drawn(after)
        assert after.episode_infos["parameters"]["mass"][0] != expected.episode_infos["parameters"]["mass"][0]
    with MultiprocessingSampler(always_zero, env, n_workers=3, seed=1) as three:
        same(expected, three.obtain_trajectories(10, env_update=SetParameters(DRAWN)))
        same(after, three.obtain_trajectories(10))
    with LocalSampler(
        Independent(always_zero), SetParameters(DRAWN, env), seed=1, worker_class=VecWorker, worker_args={"n_envs": 3}
    ) as lanes:
        same(expected, lanes.obtain_trajectories(10))
        assert lanes.replay(1, 4, recorded=expected).same


@pytest.mark.slow
def test_replaced_workers_have_the_parameters(tmp_path):
    faults = Faults(tmp_path, Fault("kill", "reset"), Fault("kill", "step", step=4))
    with LocalSampler(always_zero, SetParameters(DRAWN, Weighed), seed=1) as one:
        expected = one.obtain_trajectories(20), one.obtain_trajectories(20)
    with MultiprocessingSampler(always_zero, faults.env(Weighed), n_workers=2, seed=1, check=None) as sampler:
        same(expected[0], sampler.obtain_trajectories(20, env_update=SetParameters(DRAWN)))
        same(expected[1], sampler.obtain_trajectories(20))
        assert faults.fired() == 2
        assert sampler.stats.restarts <= 2


def test_later_parameters_replace_the_earlier_ones():
    """What an attribute was set to earlier must not be left in an environment that is kept."""
    with LocalSampler(always_zero, Weighed, n_workers=2, seed=1) as sampler:
        sampler.obtain_trajectories(4, env_update=SetParameters(DRAWN))
        batch = sampler.obtain_trajectories(4, env_update=SetParameters({"mass": 1.5}))
        assert set(batch.rewards.tolist()) == {701.5}
        assert set(batch.episode_infos["parameters"]) == {"mass"}
        batch = sampler.obtain_trajectories(4, env_update=SetParameters({"mass": 2, "size": 1}))
        assert set(batch.rewards.tolist()) == {102.0}
        batch = sampler.obtain_trajectories(4, env_update=PerWorker([SetParameters({"mass": 5}), None]))
        assert [each.rewards[0] for each in batch] == [705.0, 102.0, 705.0, 102.0]
        batch = sampler.obtain_trajectories(4, env_update=SetParameters({"size": 0}))
        assert set(batch.rewards.tolist()) == {3.0}
        assert set(sampler.obtain_trajectories(4, env_update=Weighed).rewards.tolist()) == {703.0}


def test_environments_are_kept_where_the_same_parameters_are_set_again():
    made = []

    def make():
        made.append(1)
        return Weighed()

    update = SetParameters({"mass": 1}, make)
    first = update(None)
    again = SetParameters({"mass": 2, "size": 3}).on(dumps(update, "it"), "make")
    assert again(first) is first
    assert first.reset(seed=1)[1]["parameters"] == {"mass": 2, "size": 3}
    assert update(first) is not first  # the size would be left


def test_each_distribution_draws_what_it_says():
    generator = np.random.default_rng(0)
    uniform = [Uniform(-1, 3).draw(generator) for _ in range(4000)]
    assert -1 <= min(uniform) < max(uniform) <= 3
    assert abs(np.mean(uniform) - 1) < 0.1
    logs = [LogUniform(0.01, 100).draw(generator) for _ in range(4000)]
    assert 0.01 <= min(logs) < max(logs) <= 100
    assert abs(np.mean(np.log10(logs))) < 0.1
    assert Uniform(2, 2).draw(generator) == LogUniform(2, 2).draw(generator) == 2
    normal = [Normal(5, 2).draw(generator) for _ in range(4000)]
    assert abs(np.mean(normal) - 5) < 0.15
    assert abs(np.std(normal) - 2) < 0.15
    assert {Choice(["ab", "c"]).draw(generator) for _ in range(100)} == {"ab", "c"}
    counts = [Choice([0, 1, 2], [0.25, 0.0, 0.75]).draw(generator) for _ in range(4000)]
    assert 1 not in counts
    assert abs(np.mean(counts) - 1.5) < 0.1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Uniform(2, 1), "low=2 and high=1"),
        (lambda: Uniform(0, np.inf), "finite"),
        (lambda: Uniform(untyped("a"), 1), "finite number for low"),
        (lambda: LogUniform(0, 1), "above 0"),
        (lambda: LogUniform(3, 1), "low <= high"),
        (lambda: Normal(0, -1), "std=-1"),
        (lambda: Choice([]), "at least one"),
        (lambda: Choice("abc"), "list of values"),
        (lambda: Choice([1, 2], [1.0]), "2 values, but 1 prob"),
        (lambda: Choice([1, 2], [0.5, 0.6]), "add up to 1"),
        (lambda: SetParameters({}), "no parameters"),
        (lambda: SetParameters(untyped([1])), "takes a dict"),
        (lambda: SetParameters(untyped({1: 2})), "names as keys"),
        (lambda: SetParameters({"mass": Uniform}), "an instance"),
        (lambda: SetParameters({"mass": 1}, info_key=""), "info_key"),
        (lambda: SetParameters({"mass": 1}, SetParameters({"size": 1}, Weighed)), "into one"),
        (lambda: LocalSampler(always_zero, SetParameters({"mass": 1})), "needs an environment here"),
    ],
)
def test_bad_input_says_what_is_wrong(make, words):
    with pytest.raises(UsageError, match=words):
        make()


class TellsParameters(Weighed):
    def reset(self, **arguments):
        observation, info = super().reset(**arguments)
        return observation, info | {"parameters": 1}


class ReadOnly(Weighed):
    @property
    def volume(self):
        return 1.0


@pytest.mark.parametrize(
    ("env", "update", "words"),
    [
        (Weighed, SetParameters({"mass": 1, "masss": 1}), "no parameter masss.*these attributes: .*mass, .*size"),
        (ReadOnly, SetParameters({"volume": 1}), "volume of ReadOnly cannot be set"),
        (TellsParameters, SetParameters({"mass": 1}), "info_key"),
    ],
)
def test_what_does_not_fit_the_environment_is_an_error_and_changes_nothing(env, update, words):
    with LocalSampler(always_zero, env, seed=1) as sampler:
        with pytest.raises((RolloutError, UsageError), match=words):
            sampler.obtain_trajectories(2, env_update=update)
        if env is not TellsParameters:
            assert set(sampler.obtain_trajectories(2, env_update=Weighed).rewards.tolist()) == {703.0}
    if env is TellsParameters:
        with LocalSampler(always_zero, SetParameters(update.parameters, env, info_key="set"), seed=1) as sampler:
            assert sampler.obtain_trajectories(2).episode_infos["set"]["mass"].tolist() == [1, 1]


def test_native_environments_are_refused():
    sampler = LocalSampler(
        always_zero, lambda: SyncVectorEnv([Weighed] * 2), worker_class=VecWorker, worker_args={"n_envs": 2}
    )
    with sampler, pytest.raises(RolloutError, match=r"vectorised natively.*not vectorised"):
        sampler.obtain_trajectories(2, env_update=SetParameters({"mass": 1}))


class Own(Distribution):
    def draw(self, generator):
        return {"deep": generator.integers(10)}


def test_a_distribution_of_ones_own_may_draw_what_it_likes():
    with LocalSampler(always_zero, SetParameters({"mass": 1.0, "task": Own()}, WithTask), seed=1) as sampler:
        assert len(set(sampler.obtain_trajectories(20).episode_infos["parameters"]["task"]["deep"].tolist())) > 3


def test_files_say_that_parameters_were_set(tmp_path):
    gymnasium.register("Weighed-v0", f"{__name__}:Weighed")
    try:
        update = SetParameters(DRAWN, "Weighed-v0")
        with LocalSampler("random", update, seed=1) as sampler:
            provenance = sampler.provenance()
            batch = sampler.obtain_trajectories(5)
        assert provenance["environment"] == "Weighed-v0"
        assert provenance["env_parameters"] == {"mass": "Uniform(1, 2)", "size": 0.5}
        batch.save(tmp_path / "a.npz", provenance={**provenance, "agent": "random"})
        with pytest.raises(UsageError, match="SetParameters"):
            replay(tmp_path / "a.npz", 3)
        assert replay(tmp_path / "a.npz", 3, env=update).same
        assert replay(tmp_path / "a.npz", 3, env="Weighed-v0").same is False
    finally:
        del gymnasium.registry["Weighed-v0"]


@pytest.mark.parametrize("kind", [Uniform, LogUniform, Normal])
def test_distributions_print_all_of_a_number(kind):
    """Files compare what they print: a resumed folder must not mix ranges."""
    assert repr(kind(1, 1_000_000)) == f"{kind.__name__}(1, 1e+06)"
    assert repr(kind(1, 1_000_001)) == f"{kind.__name__}(1, 1000001.0)"
    assert repr(kind(0.1, 0.1 + 0.2)) == f"{kind.__name__}(0.1, 0.30000000000000004)"


@pytest.mark.parametrize(
    "value",
    [[Uniform(1, 2), 1], {"a": {"b": Uniform(1, 2)}}, (1, [Uniform(1, 2)]), Choice([Uniform(1, 2), 3])],
    ids=["list", "dict", "tuple", "choice"],
)
def test_a_distribution_within_a_value_is_an_error(value):
    with pytest.raises(UsageError, match=r"the parameter 'mass' has Uniform\(1, 2\) within its value"):
        SetParameters({"mass": value})


def test_a_method_is_no_parameter():
    sampler = LocalSampler(always_zero, SetParameters({"step": 3, "mass": 2}, Weighed), seed=1)
    with sampler, pytest.raises(RolloutError, match="Weighed has a method of the name step, which no"):
        sampler.obtain_trajectories(1)
