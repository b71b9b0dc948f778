"""Parameters of environments: drawn from each trajectory's seed, set before its reset, told in its infos."""

import pickle
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import SyncVectorEnv

from streamsampler import LocalSampler, PerWorker, SetParameters, SetTaskUpdate, VecWorker, replay
from streamsampler.core.serialization import dumps
from streamsampler.environments import Choice, Distribution, LogUniform, Normal, Uniform
from streamsampler.errors import RolloutError, UsageError
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


DRAWN = {"mass": Uniform(1, 2), "size": 0.5}
LANES: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 3}}


def rewards_after(sampler, update):
    return set(sampler.obtain_trajectories(4, env_update=update).rewards.tolist())


@pytest.mark.parametrize("env", [Weighed, WithMethod, WithTask])
def test_parameters_are_drawn_for_each_trajectory_set_and_told(env):
    with LocalSampler(always_zero, SetParameters(DRAWN, env), seed=1, check="error") as sampler:
        first = sampler.obtain_trajectories(10)
        assert sampler.replay(1, 4, recorded=first).same
        with pickle.loads(pickle.dumps(sampler)) as copied:
            second = copied.obtain_trajectories(10)
        assert sampler.obtain_trajectories(10) == second
    with LocalSampler(Independent(always_zero), SetParameters(DRAWN, env), seed=1, **LANES) as lanes:
        assert lanes.obtain_trajectories(10) == first
        assert lanes.replay(1, 4, recorded=first).same
    with LocalSampler(always_zero, env, seed=1, check="error") as sampler:
        assert len(sampler.obtain_trajectories(3, tasks=[SetParameters({"mass": 1}), SetParameters({"mass": 2})])) == 6
    for batch in (first, second):
        drawn = batch.episode_infos["parameters"]
        assert ((drawn["mass"] >= 1) & (drawn["mass"] <= 2)).all()
        assert set(drawn["size"].tolist()) == {0.5}
        assert batch.rewards.tolist() == np.repeat(drawn["mass"] + 50.0, batch.lengths).tolist()
    drawn = np.concatenate([batch.episode_infos["parameters"]["mass"] for batch in (first, second)])
    assert len(set(drawn.tolist())) == 20


def test_fragments_draw_them_for_each_episode():
    batches = []
    for n_workers in (1, 3):
        with LocalSampler(always_zero, Weighed, n_workers=n_workers, seed=1) as sampler:
            batches.append(sampler.obtain_fragments(9, n_envs=4, env_update=SetParameters(DRAWN)))
            batches.append(sampler.obtain_fragments(9))
    assert batches[:2] == batches[2:]
    batch = batches[1]
    assert ((batch.rewards >= 51) & (batch.rewards <= 52)).all()
    assert len(set(batch.rewards.tolist())) > 4


def test_later_parameters_replace_the_earlier_ones():
    """What an attribute was set to earlier must not be left in an environment that is kept."""
    with LocalSampler(always_zero, Weighed, n_workers=2, seed=1) as sampler:
        sampler.obtain_trajectories(4, env_update=SetParameters(DRAWN))
        batch = sampler.obtain_trajectories(4, env_update=SetParameters({"mass": 1.5}))
        assert set(batch.rewards.tolist()) == {701.5}
        assert set(batch.episode_infos["parameters"]) == {"mass"}
        assert rewards_after(sampler, SetParameters({"mass": 2, "size": 1})) == {102.0}
        batch = sampler.obtain_trajectories(4, env_update=PerWorker([SetParameters({"mass": 5}), None]))
        assert [each.rewards[0] for each in batch] == [705.0, 102.0, 705.0, 102.0]
        assert rewards_after(sampler, SetParameters({"size": 0})) == {3.0}
        assert rewards_after(sampler, Weighed) == {703.0}
        # In an environment with a task, that is the environment's way.
        assert rewards_after(sampler, SetTaskUpdate(WithTask, {"mass": 8.0})) == {708.0}
        assert rewards_after(sampler, SetParameters({"mass": 2.0})) == {702.0}
        assert rewards_after(sampler, SetTaskUpdate(WithTask, {"mass": 8.0})) == {708.0}


def test_environments_are_kept_where_the_same_parameters_are_set_again():
    update = SetParameters({"mass": 1}, lambda: Weighed())
    first = update(None)
    again = SetParameters({"mass": 2, "size": 3}).on(dumps(update, "it"), "make")
    assert again(first) is first
    assert first.reset(seed=1)[1]["parameters"] == {"mass": 2, "size": 3}
    assert update(first) is not first  # the size would be left


class Own(Distribution):
    def draw(self, generator):
        return {"deep": generator.integers(10)}


def test_each_distribution_draws_what_it_says():
    generator = np.random.default_rng(0)
    n = range(4000)
    uniform = [Uniform(-1, 3).draw(generator) for _ in n]
    assert -1 <= min(uniform) < max(uniform) <= 3
    assert abs(np.mean(uniform) - 1) < 0.1
    logs = [LogUniform(0.01, 100).draw(generator) for _ in n]
    assert 0.01 <= min(logs) < max(logs) <= 100
    assert abs(np.mean(np.log10(logs))) < 0.1
    assert Uniform(2, 2).draw(generator) == LogUniform(2, 2).draw(generator) == 2
    normal = [Normal(5, 2).draw(generator) for _ in n]
    assert abs(np.mean(normal) - 5) < 0.15
    assert abs(np.std(normal) - 2) < 0.15
    assert {Choice(["ab", "c"]).draw(generator) for _ in range(100)} == {"ab", "c"}
    counts = [Choice([0, 1, 2], [0.25, 0.0, 0.75]).draw(generator) for _ in n]
    assert 1 not in counts
    assert abs(np.mean(counts) - 1.5) < 0.1
    with LocalSampler(always_zero, SetParameters({"mass": 1.0, "task": Own()}, WithTask), seed=1) as sampler:
        own = sampler.obtain_trajectories(20).episode_infos["parameters"]["task"]["deep"]
    assert len(set(own.tolist())) > 3


def test_distributions_print_all_of_a_number():
    """Files compare what they print: a resumed folder must not mix ranges."""
    for kind in (Uniform, LogUniform, Normal):
        assert repr(kind(1, 1_000_000)) == f"{kind.__name__}(1, 1e+06)"
        assert repr(kind(1, 1_000_001)) == f"{kind.__name__}(1, 1000001.0)"
        assert repr(kind(0.1, 0.1 + 0.2)) == f"{kind.__name__}(0.1, 0.30000000000000004)"


def untyped(value: Any) -> Any:
    return value


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Uniform(2, 1), "low=2 and high=1"),
        (lambda: Uniform(0, np.inf), "finite"),
        (lambda: Uniform(untyped("1"), 2), "finite number for low"),
        (lambda: LogUniform(0, 1), "above 0"),
        (lambda: Normal(0, -1), "std=-1"),
        (lambda: Choice([]), "at least one"),
        (lambda: Choice("abc"), "list of values"),
        (lambda: Choice([1, 2], [1.0]), "2 values, but 1 prob"),
        (lambda: Choice([1, 2], [0.5, 0.6]), "add up to 1"),
        (lambda: SetParameters({}), "no parameters"),
        (lambda: SetParameters(untyped([1])), "takes a dict"),
        (lambda: SetParameters(untyped({1: 2})), "names as keys"),
        (lambda: SetParameters({"mass": Uniform}), "an instance"),
        (lambda: SetParameters({"mass": [Uniform(1, 2)]}), r"'mass' has Uniform\(1, 2\) within its value"),
        (lambda: SetParameters({"mass": {"a": (1, Uniform(1, 2))}}), r"'mass' has Uniform\(1, 2\) within its value"),
        (lambda: SetParameters({"mass": Choice([Uniform(1, 2), 3])}), r"'mass' has Uniform\(1, 2\) within its value"),
        (lambda: SetParameters({"mass": 1}, info_key=""), "info_key"),
        (lambda: SetParameters({"mass": 1}, SetParameters({"size": 1}, Weighed)), "into one"),
        (lambda: LocalSampler(always_zero, SetParameters({"mass": 1})), "needs an environment here"),
    ],
)
def test_bad_input_says_what_is_wrong(make, words):
    with pytest.raises(UsageError, match=words):
        make()


class ReadOnly(Weighed):
    @property
    def volume(self):
        return 1.0


class TellsParameters(Weighed):
    def reset(self, **arguments):
        observation, info = super().reset(**arguments)
        return observation, info | {"parameters": 1}


@pytest.mark.parametrize(
    ("env", "parameters", "words"),
    [
        (Weighed, {"mass": 1, "masss": 1}, "no parameter masss.*these attributes: .*mass, .*size"),
        (Weighed, {"step": 3, "mass": 2}, "Weighed has a method of the name step, which no"),
        (ReadOnly, {"volume": 1}, "volume of ReadOnly cannot be set"),
        (TellsParameters, {"mass": 1}, "info_key"),
    ],
)
def test_what_does_not_fit_the_environment_is_an_error_and_changes_nothing(env, parameters, words):
    with LocalSampler(always_zero, env, seed=1) as sampler:
        with pytest.raises((RolloutError, UsageError), match=words):
            sampler.obtain_trajectories(2, env_update=SetParameters(parameters))
        assert rewards_after(sampler, Weighed) == {703.0}


def test_parameters_are_told_under_another_key_where_one_is_given_and_native_environments_are_refused():
    with LocalSampler(always_zero, SetParameters({"mass": 1}, TellsParameters, info_key="set"), seed=1) as sampler:
        assert sampler.obtain_trajectories(2).episode_infos["set"]["mass"].tolist() == [1, 1]
    sampler = LocalSampler(always_zero, lambda: SyncVectorEnv([Weighed] * 3), **LANES)
    with sampler, pytest.raises(RolloutError, match=r"vectorised natively.*not vectorised"):
        sampler.obtain_trajectories(2, env_update=SetParameters({"mass": 1}))


def test_files_say_that_parameters_were_set(tmp_path, monkeypatch):
    monkeypatch.setitem(gymnasium.registry, "Weighed-v0", EnvSpec("Weighed-v0", Weighed))  # type: ignore[arg-type]
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
