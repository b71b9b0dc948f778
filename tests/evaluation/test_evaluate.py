"""Evaluations: the trajectories that were asked for, on any number of workers, and when they stop."""

import dataclasses
import functools
import json
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import streamsampler
from streamsampler import (
    Limits,
    LocalSampler,
    MultiprocessingSampler,
    PerWorker,
    SetTaskUpdate,
    VecWorker,
    compare,
    evaluate,
    merge,
)
from streamsampler.core.progress import describe
from streamsampler.errors import RolloutError, StorageError, UsageError
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.intervals import Unknown, mean_interval, proportion_interval, t_interval, unseen_share
from streamsampler.evaluation.rules import BettingSequence
from streamsampler.testing import Fault, Faults
from tests.evaluation.envs import LENGTH, Better, Known, value_of, zero

SUCCEEDS = functools.partial(Known, success="is_success")
RARE = functools.partial(Known, returns="rare")


def locally(agent=zero, env=Known, *, n_workers=1, seed=1, sampler_options=(), **arguments):
    with LocalSampler(agent, env, seed=seed, n_workers=n_workers, **dict(sampler_options)) as sampler:
        return evaluate(sampler=sampler, **arguments)


def test_exactly_so_many_on_any_number_of_workers():
    with LocalSampler(zero, Known, seed=3) as sampler:
        batch = sampler.obtain_trajectories(40)
    found, other = (evaluate(zero, Known, num_trajectories=40, seed=3, n_workers=n) for n in (0, 2))
    assert found == other
    assert found.to_json() == other.to_json()
    assert np.array_equal(found.returns, batch.returns)
    assert (found.seeds, found.indices.tolist(), found.seed) == (batch.seeds, list(range(40)), 3)
    assert found != evaluate(zero, Known, num_trajectories=40, seed=4, n_workers=0)


def test_one_for_each_seed_whatever_the_samplers_seed():
    seeds = [5, 9, 8, 2**40, 0]
    first, second = (locally(seeds=seeds, seed=seed, n_workers=seed) for seed in (1, 2))
    assert first == second
    assert (first.seeds, first.seed) == (tuple(seeds), None)
    assert first.returns.tolist() == [value_of(seed) for seed in seeds]


def test_scenarios_are_found_by_their_names():
    scenarios = [{"seed": 4, "options": {"level": 100}, "name": "high"}, {"seed": 4}, {"seed": 8, "name": 3}]
    found = locally(scenarios=scenarios, n_workers=2)
    assert [each.name for each in found] == ["high", "scenario 1", "3"]
    assert (found["high"].value, found["scenario 1"].value) == (value_of(4, 100), value_of(4))
    assert (found["3"].seed, found["3"].trajectory, found["3"].length) == (8, 2, LENGTH)
    with pytest.raises(KeyError, match="there are high, scenario 1, 3; "):
        found["low"]
    own = locally(scenarios=[{"options": {"level": 7}}, {}], seed=5)
    with LocalSampler(zero, Known, seed=5) as sampler:
        assert own.seeds == tuple(sampler.seeds(1, range(2)))
    assert own.returns.tolist() == [value_of(own.seeds[0], 7), value_of(own.seeds[1])]
    assert own.names is None


def test_scenarios_survive_workers_that_are_killed(tmp_path):
    scenarios = [{"seed": 100 + n, "options": {"level": n}, "name": f"n{n}"} for n in range(40)]
    faults = Faults(tmp_path, Fault("kill", "reset"), Fault("kill", "step", step=1))
    with MultiprocessingSampler(zero, faults.env(Known), n_workers=2, check=None) as sampler:
        killed = evaluate(sampler=sampler, scenarios=scenarios)
        assert sampler.stats.restarts <= faults.fired() == 2
    assert killed.returns.tolist() == [value_of(100 + n, n) for n in range(40)]
    assert killed.names == locally(scenarios=scenarios).names


def test_a_sampler_that_is_there_is_used_and_stays_open():
    with LocalSampler(zero, Known, seed=3, n_workers=2) as sampler:
        first = evaluate(sampler=sampler, num_trajectories=5)
        assert sampler.stats.surplus_trajectories == 0
        second = evaluate(Better(), sampler=sampler, num_trajectories=5)
        assert set(first.seeds).isdisjoint(second.seeds), "the second call has seeds of its own"
        assert second.returns.tolist() == [value_of(seed) + 1 for seed in second.seeds]
        assert evaluate(zero, RARE, sampler=sampler, seeds=[10, 11]).returns.tolist() == [0, 1]
        assert len(sampler.obtain_trajectories(2)) == 2


def prefix(values, holds):
    """Return how many of the values are the fewest for which something holds."""
    return next(n for n in range(1, len(values) + 1) if holds(values[:n]))


def test_the_shortest_prefix_with_the_precision():
    whole = locally(num_trajectories=400).returns
    found = locally(until_halfwidth=0.4, n_workers=3)
    n = prefix(
        whole, lambda seen: len(seen) >= 30 and t_interval(seen).halfwidth <= 0.4 >= mean_interval(seen).halfwidth
    )
    assert 40 < n < 200
    assert np.array_equal(found.returns, whole[:n])
    assert "is at most 0.4" in found.stopped
    assert found.mean_interval.halfwidth <= 0.4

    whole = locally(env=SUCCEEDS, num_trajectories=400).successes
    found = locally(env=SUCCEEDS, until_halfwidth=0.08, precision_of="success", n_workers=3)
    n = prefix(whole, lambda seen: len(seen) >= 10 and proportion_interval(int(sum(seen)), len(seen)).halfwidth <= 0.08)
    assert 50 < n < 300
    assert np.array_equal(found.successes, whole[:n])
    assert found.success_interval.method == "Clopper-Pearson"


def test_a_guaranteed_precision_is_that_of_bets():
    whole = locally(num_trajectories=1_000).returns
    found = locally(until_halfwidth=3, guarantee=True, bounds=(-10, 30))
    betting = BettingSequence(-10, 30)
    n = 0
    while betting.interval.halfwidth > 3:
        betting.add(whole[n])
        n += 1
    assert np.array_equal(found.returns, whole[:n])
    assert found.mean_interval == betting.interval
    assert (found.guaranteed, found.bounds) == ("return", (-10, 30))
    rate = locally(env=SUCCEEDS, until_halfwidth=0.2, guarantee=True, precision_of="success")
    assert rate.success_interval.method == "betting" != rate.mean_interval.method


def test_there_are_a_floor_and_a_cap():
    assert len(locally(until_halfwidth=1e6)) == 30
    assert len(locally(until_halfwidth=1e6, min_trajectories=35)) == 35
    assert len(locally(env=SUCCEEDS, until_halfwidth=0.49, precision_of="success")) == 10
    found = locally(until_halfwidth=1e-6, max_trajectories=50)
    assert len(found) == 50
    assert "there were 50 trajectories, the most" in found.stopped
    seeds = range(100, 160)
    assert locally(until_halfwidth=1e-6, seeds=seeds).seeds == tuple(seeds)
    assert locally(until_halfwidth=1e6, seeds=seeds).seeds == tuple(seeds[:30])


class Drawn(gymnasium.Env):
    """Has trajectories of one timestep, whose return a function draws from the seed."""

    observation_space, action_space = spaces.Discrete(2), spaces.Discrete(2)

    def __init__(self, draw):
        self.draw = draw

    def reset(self, *, seed=None, options=None):
        self.value = float(self.draw(np.random.default_rng(seed)))
        return 0, {}

    def step(self, action):
        return 0, self.value, True, False, {}


def drawn(draw):
    return functools.partial(Drawn, draw)


EQUAL = drawn(lambda rng: 1.0)


def test_two_values_have_the_exact_interval_also_where_it_decides_when_to_stop():
    env = drawn(lambda rng: rng.random() < 0.9)
    whole = locally(env=env, num_trajectories=300).returns
    found = locally(env=env, until_halfwidth=0.06, n_workers=3)

    def is_narrow(seen):
        n, k = len(seen), int(sum(seen))
        return n >= 30 and 0 < k < n and proportion_interval(k, n).halfwidth <= 0.06

    n = prefix(whole, is_narrow)
    assert 60 < n < 200
    assert np.array_equal(found.returns, whole[:n])
    assert found.mean_interval == proportion_interval(int(found.returns.sum()), n)
    assert found.mean_interval.method == "Clopper-Pearson" == found.median_interval.method
    assert f"{found.mean_interval.halfwidth:.5g}, is at most 0.06" in found.stopped


def test_a_precision_is_not_reached_by_equal_returns():
    """They say nothing of how large others are: the evaluation stops where few others may be, and says so."""
    found = locally(env=EQUAL, until_halfwidth=0.02, n_workers=3)
    assert (len(found), found.mean_interval) == (299, Unknown("all returns are equal"))
    assert found.unseen_share == unseen_share(299) <= 0.01
    share = "with 95 % confidence at most 0.997 % of trajectories have another one"
    assert (
        found.stopped
        == f"all returns are equal, and {share}; with bounds (least, largest) of returns their mean has an interval"
    )
    assert f"note: all returns are equal; {share}" in str(found)
    assert "[" not in "".join(line for line in str(found).splitlines() if "no interval holds" in line)
    assert json.loads(found.to_json())["summary"]["unseen_share"] == found.unseen_share
    few = locally(env=EQUAL, until_halfwidth=0.02, max_trajectories=100)
    assert few.stopped.startswith("there were 100 trajectories, the most; all returns are equal, and with 95 %")
    assert len(locally(env=EQUAL, until_halfwidth=0.02, min_trajectories=320)) == 320
    nearly = drawn(lambda rng: 0.1 * 3 if rng.random() < 0.5 else 0.3)
    assert locally(env=nearly, until_halfwidth=0.02).stopped == found.stopped, "rounding makes them no two values"
    differ: Any = locally(env=drawn(lambda rng: rng.random() < 0.02), until_halfwidth=0.02)
    assert (differ.unseen_share, 0.02 in differ.mean_interval) == (None, True)
    progress = []
    locally(env=EQUAL, until_halfwidth=0.02, progress=progress.append)
    locally(env=EQUAL, num_trajectories=20, progress=progress.append)
    assert progress[-1].note == "return 1, all equal"


def test_bounds_give_equal_returns_an_interval():
    share = 1 - 0.025 ** (1 / 50)
    found: Any = locally(env=EQUAL, num_trajectories=50, bounds=(0, 2))
    assert (found.mean_interval.low, found.mean_interval.high) == pytest.approx((1 - share, 1 + share))
    assert (found.bounds, found.guaranteed) == ((0, 2), None)
    assert Evaluation.from_json(found.to_json()) == found
    few: Any = locally(env=EQUAL, num_trajectories=2, bounds=(0, 1))
    assert (few.mean_interval, few.mean_interval.method) == (proportion_interval(2, 2), "Clopper-Pearson")
    until: Any = locally(env=EQUAL, until_halfwidth=0.02, bounds=(0, 1))
    n = prefix(range(1, 1_000), lambda seen: proportion_interval(len(seen), len(seen)).halfwidth <= 0.02)
    assert (len(until), until.mean_interval) == (n, proportion_interval(n, n))
    assert "half-width of the mean return's interval" in until.stopped
    rounded: Any = locally(env=drawn(lambda rng: 0.1 + 0.2), num_trajectories=50, bounds=(0, 0.3))
    assert rounded.mean_interval.method == "Clopper-Pearson", "rounding is not outside of bounds"
    assert locally(env=drawn(lambda rng: 0.1 + 0.2), until_halfwidth=9, guarantee=True, bounds=(0, 0.3)).guaranteed
    with pytest.raises(UsageError, match=r"bounds are \(0, 1\), but a return is 2"):
        dataclasses.replace(until, returns=np.full(n, 2.0))


def test_a_return_that_is_not_finite_ends_the_search_for_a_precision():
    found = locally(env=drawn(lambda rng: np.inf if rng.random() < 0.2 else rng.normal()), until_halfwidth=0.1)
    assert (len(found), found.unseen_share) == (30, None)
    assert found.stopped == "no interval of the mean return holds: a return is not finite"


CARTPOLE, ACROBOT = gymnasium.spec("CartPole-v1"), gymnasium.spec("Acrobot-v1")


def test_a_list_of_several_tasks_is_an_error_unless_it_says_that_one_mean_is_wanted():
    """A list has one environment for each worker: the returns of two tasks would become one mean."""
    how: dict[str, Any] = {"num_trajectories": 4, "seed": 1, "n_workers": 2}
    pooled = "a list of different environments .CartPole-v1, Acrobot-v1.*pooled into one mean.*PerWorker"
    for envs, words in (
        (["CartPole-v1", "Acrobot-v1"], pooled),
        ([CARTPOLE, ACROBOT], pooled),
        ([gymnasium.make("CartPole-v1"), gymnasium.make("Acrobot-v1")], pooled),
        ([CARTPOLE, dataclasses.replace(CARTPOLE, max_episode_steps=3)], "a list of 2 environments"),
        ([Known, Known], "a list of 2 environments, whose specs are unknown"),
        ([SetTaskUpdate(Known, 1), SetTaskUpdate(Known, 2)], "a list of 2 environments, whose specs are unknown"),
        (["CartPole-v1", None], "different environments .CartPole-v1, None"),
    ):
        with pytest.raises(UsageError, match=words):
            evaluate("random", envs, **how)
        with pytest.raises(UsageError, match=words):
            compare(["random", "random"], envs, **how)
    with LocalSampler("random", "CartPole-v1", n_workers=2) as sampler, pytest.raises(UsageError, match=pooled):
        evaluate(None, ["CartPole-v1", "Acrobot-v1"], sampler=sampler, num_trajectories=4)
    taken: list[Any] = [["CartPole-v1", CARTPOLE], PerWorker(["CartPole-v1", "Acrobot-v1"]), PerWorker([Known] * 2)]
    for it in taken:
        with LocalSampler("random", "CartPole-v1", n_workers=2) as sampler:
            assert len(evaluate("random", it, sampler=sampler, num_trajectories=4)) == 4


def test_a_sampler_of_several_tasks_is_evaluated_with_a_warning(caplog):
    with LocalSampler("random", ["CartPole-v1", "Acrobot-v1"], n_workers=2) as sampler:
        found = evaluate(sampler=sampler, num_trajectories=4)
    assert found.environment == ["CartPole-v1", "Acrobot-v1"]
    assert "the mean is over different environments: CartPole-v1, Acrobot-v1" in caplog.text
    assert "note: the mean is over different environments" in str(found)


@pytest.mark.parametrize("key", ["success", "is_success"])
def test_successes_at_the_end_and_at_any_time(key):
    seeds = range(12)
    end, once = (locally(env=functools.partial(Known, success=key), seeds=seeds, success=it) for it in ("end", "once"))
    assert end.successes.tolist() == [seed % 4 == 0 for seed in seeds]
    assert once.successes.tolist() == [seed % 4 == 0 or seed % 3 == 0 for seed in seeds]
    assert (end.success_rate, end.success_interval) == (0.25, proportion_interval(3, 12))
    nothing = locally(seeds=seeds)
    assert (nothing.successes, nothing.success_rate, nothing.success_interval) == (None, None, None)


def test_ends_are_told_apart():
    assert locally(seeds=range(10)).shares == {"terminated": 0.5, "truncated": 0.5, "cut": 0}
    cut = locally(seeds=range(10), sampler_options={"max_episode_length": 2})
    assert cut.shares == {"terminated": 0, "truncated": 0, "cut": 1}
    assert set(cut.ends) == {"cut"}


def test_what_raises_ends_the_evaluation_or_is_left_out():
    env = functools.partial(Known, fails=(3, 5))
    with pytest.raises(RolloutError, match="seed 3 fails"):
        locally(env=env, seeds=range(8))
    names = [{"seed": seed, "name": f"seed {seed}"} for seed in range(8)]
    found = locally(env=env, scenarios=names, sampler_options={"on_failure": "drop"})
    assert (found.seeds, found.left_out) == ((0, 1, 2, 4, 6, 7), 2)
    assert "2 trajectories raised and are left out" in str(found)
    assert found["seed 6"].value == value_of(6)
    with pytest.raises(KeyError, match="seed 0, seed 1, seed 2, seed 4, seed 6, …"):
        found["seed 5"]
    reasons = [f"trajectory {seed}, resetting the environment: ValueError: seed {seed} fails" for seed in (3, 5)]
    assert list(found.failures) == reasons
    assert "\n    ".join(["the result is biased", *reasons]) in str(found)
    assert Evaluation.from_json(found.to_json()) == found
    many = locally(
        env=functools.partial(Known, fails=(0, 2, 4, 5)), seeds=range(6), sampler_options={"on_failure": "drop"}
    )
    assert [each[:12] for each in many.failures] == ["trajectory 0", "trajectory 2", "trajectory 4"]
    assert "seed 4 fails\n    …\n" in str(many)


def test_trajectories_are_left_out_up_to_the_last_one_that_is_kept():
    """Workers are ahead of a rule: what they left out after its last trajectory is no part of the evaluation."""
    env = functools.partial(Known, fails=[seed for seed in range(200) if seed % 7 == 3])
    options: dict[str, Any] = {"seeds": range(200), "until_halfwidth": 0.5, "on_failure": "drop", "check": None}
    for n_workers in (0, 2):
        found = evaluate(zero, env, n_workers=n_workers, **options)
        assert found.left_out == found.indices[-1] + 1 - len(found) < 20
        assert [each.split(",")[0] for each in found.failures] == ["trajectory 3", "trajectory 10", "trajectory 17"]


class Broken(Known):
    """Has a NaN in the observation and the reward of the last timestep of some trajectories."""

    def step(self, action):
        observation, reward, *others = super().step(action)
        is_broken = self.t == LENGTH and self.seed % 5 == 4
        return observation * np.nan if is_broken else observation, np.nan if is_broken else reward, *others


def test_what_was_warned_of_stands_in_the_file(tmp_path):
    """A warning in the log of a night's evaluation is not seen by readers of its file."""
    found, other = (locally(env=Broken, seeds=range(23), n_workers=n) for n in (1, 3))
    assert found == other
    with LocalSampler(zero, Known, seed=5) as sampler:
        sampler.obtain_trajectories(1)
        later = evaluate(zero, Broken, sampler=sampler, seeds=range(23))
    assert (later.anomalies, later.first_anomaly) == (found.anomalies, found.first_anomaly), "of another agent version"
    assert found.anomalies > 1
    assert found.first_anomaly.endswith(f"at timestep {LENGTH - 1} of trajectory 4")
    assert "nan" in found.first_anomaly.lower()
    note = f"note: {found.anomalies} anomalies in the data, the first: {found.first_anomaly}"
    assert note in str(found)
    assert Evaluation.load(found.save(tmp_path / "found.json")) == found
    assert json.loads(found.to_json())["anomalies"] == {"count": found.anomalies, "first": found.first_anomaly}
    assert note.removeprefix("note: ") in str(compare([zero, zero], Broken, seeds=range(23), n_workers=0))
    clean = locally(seeds=range(3))
    assert (clean.anomalies, clean.first_anomaly, "anomalies" in json.loads(clean.to_json())) == (0, None, False)
    until = locally(env=functools.partial(Broken, returns="rare"), until_halfwidth=9, max_trajectories=40, n_workers=3)
    assert until.stopped == "no interval of the mean return holds: a return is not finite"
    assert until == locally(env=functools.partial(Broken, returns="rare"), until_halfwidth=9, max_trajectories=40)
    merged = [evaluate(zero, Broken, seeds=range(23), part=(part, 3), n_workers=0) for part in (1, 2, 3)]
    files = [part.save(tmp_path / f"{number}.json") for number, part in enumerate(merged)]
    whole = evaluate(zero, Broken, seeds=range(23), n_workers=0)
    merge(files, tmp_path / "merged.json")
    assert (tmp_path / "merged.json").read_text() == whole.to_json()


def test_agents_have_names_and_with_predict_are_deterministic_unless_told_otherwise():
    given: dict[str, Any] = {"seeds": [1, 2], "n_workers": 0}
    assert evaluate(Better(), Known, **given).returns.tolist() == [value_of(seed) + 1 for seed in (1, 2)]
    drawn = evaluate(Better(), Known, deterministic=False, **given)
    assert drawn.returns.tolist() == [value_of(seed) for seed in (1, 2)]
    assert drawn.agent == {"name": "Better", "deterministic": False}
    assert str(drawn).startswith("Better in Known: 2 trajectories")
    assert evaluate(zero, Known, **given).agent == {"name": "zero"}
    assert evaluate("random", Known, **given).agent == {"name": "RandomAgent"}
    assert " at 0x" not in str(evaluate(lambda _: 0, Known, **given))


def test_numbers_are_those_of_the_returns():
    found = locally(num_trajectories=64)
    returns = found.returns
    assert (found.mean, found.median, found.minimum) == (returns.mean(), np.median(returns), returns.min())
    assert (found.maximum, found.standard_deviation) == (returns.max(), returns.std(ddof=1))
    assert found.standard_error == pytest.approx(returns.std(ddof=1) / 8)
    assert found.mean in found.mean_interval
    assert found.median in found.median_interval
    assert found.interquartile_mean in found.interquartile_mean_interval
    text = str(found).splitlines()
    assert text[0] == "the sampler's agent in Known: 64 trajectories"
    line = next(line for line in text if "mean return" in line)
    assert (line.split()[2], line[-4:]) == (f"{found.mean:.5g}", "]  t")
    assert any("percentile bootstrap" in line for line in text)
    assert text[-1] == "stopped: as many as were asked for"
    with pytest.raises(ValueError, match="read-only"):
        returns[0] = 0


def test_few_trajectories_have_no_interval():
    few = locally(seeds=range(9))
    assert few.mean_interval == Unknown("9 trajectories, fewer than 10")
    assert "no interval holds: 9 trajectories, fewer than 10" in str(few)
    few = locally(env=functools.partial(Known, success="success"), seeds=range(9))
    assert few.success_interval == proportion_interval(3, 9), "an exact interval holds for any number"
    assert "nan" in str(locally(seeds=[7]))
    same = str(locally(env=RARE, seeds=range(1, 601, 10)))
    assert "all returns are equal; with 95 % confidence at most 4.87 % of trajectories have another one" in same


def test_evaluations_show_their_interval_in_one_line():
    found = locally(num_trajectories=30)
    low, high = found.mean_interval.low, found.mean_interval.high
    assert repr(found) == f"Evaluation(30 trajectories, mean return {found.mean:.5g}, 95 % [{low:.5g}, {high:.5g}])"
    one = locally(num_trajectories=1)
    assert repr(one).endswith(", no interval: 1 trajectory, fewer than 10)")
    assert not one.mean_interval
    assert found.mean_interval
    with pytest.raises(KeyError, match=r"3: the keys are the names of scenarios.*returns\[i\]"):
        found[3]


def test_files_have_the_name_of_their_format(tmp_path):
    found = locally(num_trajectories=1)
    with pytest.raises(UsageError, match=r"the evaluation is written as JSON: use the suffix .json"):
        found.save(tmp_path / "found.csv")
    with pytest.raises(UsageError, match="no such directory"):
        found.save(tmp_path / "nowhere" / "found.json")
    assert Evaluation.load(found.save(tmp_path / "found")) == found


class Nothing:
    pass


def test_what_is_saved_is_loaded_again(tmp_path):
    scenarios = [{"seed": seed, "name": f"number {seed}"} for seed in range(12)]
    settings: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}, "max_episode_length": 50}
    told = evaluate(
        zero, Known, seeds=[1], n_workers=0, env_kwargs={"success": "success", "fails": (5, Nothing)}, **settings
    )
    assert told.settings["env_kwargs"] == {"success": "success", "fails": [5, "Nothing"]}
    assert {name: told.settings[name] for name in settings} == {**settings, "worker_class": "VecWorker"}
    infinite = locally(scenarios=[{"options": {"level": float("inf")}}, *[{}] * 40])
    assert infinite.mean_interval == Unknown("a return is not finite")
    for found in (
        locally(env=SUCCEEDS, scenarios=scenarios),
        locally(until_halfwidth=9, guarantee=True, bounds=(-10, 30)),
        locally(env=functools.partial(Known, fails=(1,)), seeds=range(4), sampler_options={"on_failure": "drop"}),
        told,
        infinite,
        locally(seeds=[1]),
    ):
        path = found.save(tmp_path / "found.json")
        assert Evaluation.load(path) == Evaluation.from_json(found.to_json()) == found
        assert str(Evaluation.load(path)) == str(found)
        assert "Infinity" not in found.to_json()
    facts = json.loads(path.read_text())
    assert facts["summary"]["mean"] == found.mean
    assert facts["versions"]["numpy"] == np.__version__
    assert facts["package_version"] == streamsampler.__version__


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda facts: facts.pop("returns"), "'returns' is missing"),
        (lambda facts: facts["lengths"].pop(), "columns of equal length"),
        (lambda facts: facts.update(terminated=[0, 1]), "terminated should be a list of bool"),
        (lambda facts: facts.update(seeds="12"), "seeds should be a list of int"),
        (lambda facts: facts.update(format="something"), "it holds"),
        (lambda facts: facts.update(format_version=99), "has format version 99"),
        (lambda facts: facts.update(agent=5), "agent is no object"),
    ],
)
def test_files_that_are_something_else_are_refused(tmp_path, change, message):
    facts = json.loads(locally(seeds=[1, 2]).to_json())
    change(facts)
    path = tmp_path / "changed.json"
    path.write_text(json.dumps(facts))
    with pytest.raises(StorageError, match=message) as caught:
        Evaluation.load(path)
    assert str(path) in str(caught.value)
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(StorageError, match="is not JSON"):
        Evaluation.load(path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "the number of trajectories is missing: give n_trajectories, seeds, scenarios or until_halfwidth"),
        ({"n_trajectories": 0}, "n_trajectories must be at least 1"),
        ({"num_trajectories": 0}, "num_trajectories must be at least 1"),
        ({"n_trajectories": 3, "num_trajectories": 3}, "another name of n_trajectories: give one of them"),
        ({"n_trajectories": 3, "seeds": [1]}, "n_trajectories is 3, but there are 1 seeds"),
        ({"num_trajectories": 3, "seeds": [1]}, "num_trajectories is 3, but there are 1 seeds"),
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": 5}, "seeds must be a sequence"),
        ({"seeds": [3, 1, 2, 1]}, r"seed 1 is repeated, in seeds\[1\] and seeds\[3\]"),
        ({"seeds": [1, 1], "until_halfwidth": 1}, "seed 1 is repeated"),
        ({"scenarios": [{"seed": 1}, {"seed": 1, "name": "b"}]}, r"repeated, in scenarios\[0\] and scenarios\[1\]"),
        ({"seeds": [1.5]}, r"seeds\[0\] must be an integer"),
        ({"seeds": [1], "scenarios": [{}]}, "scenarios have their own seeds"),
        ({"scenarios": []}, "scenarios is empty"),
        ({"scenarios": {"seed": 1}}, "scenarios must be a list of dicts"),
        ({"scenarios": [5]}, r"scenarios\[0\] must be a dict"),
        ({"scenarios": [{"sead": 5}]}, r"scenarios\[0\] has 'sead'; a scenario has seed, options and name"),
        ({"scenarios": [{"seed": 5}, {}]}, r"scenarios\[1\] has no seed"),
        ({"scenarios": [{"options": 5}]}, r"the options of scenarios\[0\] must be a dict"),
        ({"scenarios": [{"name": 1}, {"name": "1"}]}, "have the same name, '1'"),
        ({"until_halfwidth": 0}, "until_halfwidth must be a number above 0"),
        ({"until_halfwidth": "1"}, "until_halfwidth must be a number above 0"),
        ({"until_halfwidth": 1, "num_trajectories": 5}, "leave out num_trajectories"),
        ({"until_halfwidth": 1, "n_trajectories": 5}, "leave out n_trajectories"),
        ({"until_halfwidth": 1, "scenarios": [{}]}, "leave out scenarios"),
        ({"until_halfwidth": 1, "min_trajectories": 29}, "min_trajectories must be at least 30"),
        ({"until_halfwidth": 1, "precision_of": "success"}, "must be below 0.5"),
        ({"until_halfwidth": 1, "precision_of": "length"}, 'precision_of must be "return" or "success"'),
        ({"until_halfwidth": 1, "guarantee": True}, "guarantee=True needs bounds"),
        (
            {"until_halfwidth": 1, "bounds": (0, 1)},
            "bounds are .0, 1., but a value is .* of trajectory 0 .seed",
        ),
        ({"num_trajectories": 5, "bounds": (0, 1)}, "bounds are .0, 1., but a return is .* of trajectory 0"),
        ({"num_trajectories": 5, "bounds": (0, float("inf"))}, "two finite numbers in ascending order"),
        ({"seeds": [1], "bounds": "01"}, "bounds must be .least, largest., two numbers"),
        ({"until_halfwidth": 1, "guarantee": True, "bounds": (0, 1)}, "bounds are .0, 1., but a value is"),
        ({"until_halfwidth": 1, "guarantee": True, "bounds": 5}, "bounds must be .least, largest., two numbers"),
        ({"until_halfwidth": 1, "seeds": [1], "max_trajectories": 2}, "max_trajectories is 2, but there are 1 seeds"),
        ({"num_trajectories": 5, "guarantee": True}, "guarantee is for until_halfwidth"),
        ({"num_trajectories": 5, "success": "twice"}, 'success must be "end" or "once"'),
        ({"until_halfwidth": 0.1, "precision_of": "success"}, "no info of the first 10 trajectories has a key"),
        ({"num_trajectories": 5, "n_workers": 3}, "a given sampler has its own arguments: leave out n_workers"),
        ({"num_trajectories": 5, "deterministic": True}, "need an agent"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, message):
    with LocalSampler(zero, Known, seed=1) as sampler, pytest.raises(UsageError, match=message):
        evaluate(sampler=sampler, **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"env": None}, "give an agent and an environment"),
        ({"agent": None, "env": None, "sampler": "local"}, "not a str"),
        ({"order": "arrival"}, "favours short"),
        ({"deterministic": True}, "deterministic is for agents with predict"),
        ({"vec_normalize": "file.pkl"}, "vec_normalize is for"),
        ({"agent": [zero, zero]}, r"agent is a list of 2 agents: .* compare.* PerWorker"),
        ({"agent": (zero,)}, "agent is a tuple of 1 agent: "),
    ],
)
def test_there_must_be_an_agent_an_environment_and_an_order(arguments, message):
    given: Any = {"agent": zero, "env": Known, "num_trajectories": 5, **arguments}
    with pytest.raises(UsageError, match=message):
        evaluate(**given)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_trajectory": 5}, "has no argument 'n_trajectory': did you mean 'n_trajectories'?"),
        ({"n_trajectories": 5, "n_worker": 5}, "has no argument 'n_worker': did you mean 'n_workers'?"),
        ({"n_trajectories": 5, "start_metod": "fork"}, "has no argument 'start_metod': did you mean 'start_method'?"),
        ({"n_trajectories": 5, "ray_adress": ""}, "has no argument 'ray_adress': did you mean 'ray_address'?"),
        ({"n_trajectories": 5, "xyz": 5}, "has no argument 'xyz'; it has "),
    ],
)
def test_a_wrong_keyword_names_the_right_one_at_once(arguments, message):
    """Before an agent is loaded, or a sampler made."""
    calls: Any = ((evaluate, "nowhere.zip"), (compare, ["nowhere.zip"] * 2))
    for call, agent in calls:
        with pytest.raises(TypeError, match=f"{call.__name__} {message}") as caught:
            call(agent, Known, **arguments)
        assert isinstance(caught.value, UsageError)


def test_amounts_have_one_name_and_a_second_one():
    how: dict[str, Any] = {"seed": 1, "n_workers": 0}
    assert evaluate(zero, Known, n_trajectories=3, **how) == evaluate(zero, Known, num_trajectories=3, **how)
    agents = [zero, zero]
    assert compare(agents, Known, n_trajectories=3, **how) == compare(agents, Known, num_trajectories=3, **how)


def test_a_sampler_in_another_order_is_refused():
    with (
        LocalSampler(zero, Known, order="arrival") as sampler,
        pytest.raises(UsageError, match="favours short"),
    ):
        evaluate(sampler=sampler, num_trajectories=5)


def interrupt(snapshot):
    if snapshot.n_trajectories >= 12:
        raise KeyboardInterrupt


interrupt.interval = 0.0  # type: ignore[attr-defined]


def test_what_is_finished_survives_ctrl_c():
    whole = locally(num_trajectories=2_000)
    with pytest.raises(EvaluationInterruptedError) as caught:
        locally(num_trajectories=2_000, progress=interrupt)
    found = caught.value.found
    assert isinstance(caught.value, KeyboardInterrupt)
    assert 12 <= len(found) < 2_000
    assert np.array_equal(found.returns, whole.returns[: len(found)])
    assert found.stopped == "interrupted"


def test_progress_shows_the_interval():
    shown = []
    found = locally(until_halfwidth=0.5, progress=shown.append)
    last = shown[-1]
    assert (last.complete, last.n_trajectories, last.n_timesteps) == (True, len(found), LENGTH * len(found))
    assert last.note.startswith(f"return {found.mean:.4g} ± ")
    assert last.note.endswith(", to ± 0.5")
    assert last.target == len(found), "a precision that is reached is not 100 % of its cap"
    assert describe(last)[2] == last.note
    locally(num_trajectories=40, progress=shown.append)
    assert (shown[-1].target, shown[-1].note[:7]) == (40, "return ")


class NeverClosed(Known):
    def close(self):
        raise RuntimeError("it is stuck")


@pytest.mark.parametrize("n_workers", [0, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.usefixtures("patient")  # a worker that is slow to say so would be killed
def test_what_was_found_is_not_lost_where_an_environment_cannot_be_closed(n_workers, caplog):
    patience: dict[str, Any] = {"limits": Limits(close_timeout=120.0)} if n_workers else {}
    found = evaluate(zero, NeverClosed, num_trajectories=5, seed=3, n_workers=n_workers, check=None, **patience)
    assert found.returns.tolist() == evaluate(zero, Known, num_trajectories=5, seed=3, n_workers=0).returns.tolist()
    assert "closing the sampler raised" in caplog.text
    assert "it is stuck" in caplog.text
    compared = compare([zero, Better()], NeverClosed, num_trajectories=5, seed=3, n_workers=0, check=None)
    assert len(compared.evaluations) == 2
