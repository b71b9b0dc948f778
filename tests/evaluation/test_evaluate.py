"""Evaluations: the trajectories that were asked for, on any number of workers, and when they stop."""

import functools
import json
from typing import Any

import numpy as np
import pytest

import streamsampler
from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker, evaluate
from streamsampler.core.progress import describe
from streamsampler.errors import RolloutError, StorageError, UsageError
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.intervals import Unknown, mean_interval, t_interval, wilson_interval
from streamsampler.evaluation.rules import BettingSequence
from streamsampler.testing import Fault, Faults
from tests.evaluation.envs import LENGTH, Better, Known, value_of, zero
from tests.patience import PATIENCE

SUCCEEDS = functools.partial(Known, success="is_success")


def locally(agent=zero, env=Known, *, n_workers=1, seed=1, sampler_options=(), **arguments):
    with LocalSampler(agent, env, seed=seed, n_workers=n_workers, **dict(sampler_options)) as sampler:
        return evaluate(sampler=sampler, **arguments)


# ---------------------------------------------------------------------- how many


def test_exactly_so_many_on_any_number_of_workers():
    with LocalSampler(zero, Known, seed=3) as sampler:
        batch = sampler.obtain_trajectories(40)
    found = [evaluate(zero, Known, num_trajectories=40, seed=3, n_workers=n) for n in (0, 3)]
    for each in found:
        assert each == found[0]
        assert each.to_json() == found[0].to_json()
        assert np.array_equal(each.returns, batch.returns)
        assert each.seeds == batch.seeds
        assert each.indices.tolist() == list(range(40))
        assert each.seed == 3
    assert found[0] != evaluate(zero, Known, num_trajectories=40, seed=4, n_workers=0)


def test_one_for_each_seed_whatever_the_samplers_seed():
    seeds = [5, 9, 9, 2**40, 0]
    first, second = (locally(seeds=seeds, seed=seed, n_workers=seed) for seed in (1, 2))
    assert first == second
    assert first.seeds == tuple(seeds)
    assert first.returns.tolist() == [value_of(seed) for seed in seeds]
    assert first.seed is None


def test_scenarios_are_found_by_their_names():
    scenarios = [{"seed": 4, "options": {"level": 100}, "name": "high"}, {"seed": 4}, {"seed": 8, "name": 3}]
    for n_workers in (1, 2):
        found = locally(scenarios=scenarios, n_workers=n_workers)
        assert [each.name for each in found] == ["high", "scenario 1", "3"]
        assert found["high"].value == value_of(4, 100)
        assert found["scenario 1"].value == value_of(4)
        assert (found["3"].seed, found["3"].trajectory, found["3"].length) == (8, 2, LENGTH)
        with pytest.raises(KeyError):
            found["low"]
    own = locally(scenarios=[{"options": {"level": 7}}, {}], seed=5)
    with LocalSampler(zero, Known, seed=5) as sampler:
        assert own.seeds == tuple(sampler.seeds(1, range(2)))
    assert own.returns.tolist() == [value_of(own.seeds[0], 7), value_of(own.seeds[1])]
    assert own.names is None


def test_a_sampler_that_is_there_is_used_and_stays_open():
    with MultiprocessingSampler(zero, Known, seed=3, n_workers=2) as sampler:
        first = evaluate(sampler=sampler, num_trajectories=5)
        second = evaluate(Better(), sampler=sampler, num_trajectories=5)
        assert set(first.seeds).isdisjoint(second.seeds), "the second call has seeds of its own"
        assert second.returns.tolist() == [value_of(seed) + 1 for seed in second.seeds]
        high = evaluate(zero, functools.partial(Known, returns="rare"), sampler=sampler, seeds=[10, 11])
        assert high.returns.tolist() == [0, 1]
        assert len(sampler.obtain_trajectories(2)) == 2


# ---------------------------------------------------------------------- until a precision is reached


def prefix(returns, holds):
    return next(n for n in range(1, len(returns) + 1) if holds(returns[:n]))


@pytest.mark.parametrize("n_workers", [1, 3])
def test_the_shortest_prefix_with_the_precision(n_workers):
    whole = locally(num_trajectories=400).returns
    found = locally(until_halfwidth=0.4, n_workers=n_workers)
    n = prefix(
        whole, lambda seen: len(seen) >= 30 and t_interval(seen).halfwidth <= 0.4 >= mean_interval(seen).halfwidth
    )
    assert 40 < n < 200
    assert np.array_equal(found.returns, whole[:n])
    assert "is at most 0.4" in found.stopped
    assert found.mean_interval.halfwidth <= 0.4


def test_a_precision_that_is_there_at_once_waits_for_the_floor():
    assert len(locally(until_halfwidth=1e6)) == 30
    assert len(locally(until_halfwidth=1e6, min_trajectories=35)) == 35
    assert len(locally(env=SUCCEEDS, until_halfwidth=0.49, precision_of="success")) == 10


@pytest.mark.parametrize("n_workers", [1, 3])
def test_success_rates_stop_on_wilsons_interval(n_workers):
    whole = locally(env=SUCCEEDS, num_trajectories=400).successes
    found = locally(env=SUCCEEDS, until_halfwidth=0.08, precision_of="success", n_workers=n_workers)
    n = prefix(whole, lambda seen: len(seen) >= 10 and wilson_interval(int(sum(seen)), len(seen)).halfwidth <= 0.08)
    assert 50 < n < 300
    assert np.array_equal(found.successes, whole[:n])
    assert found.success_interval.method == "Wilson"


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
    assert rate.success_interval.method == "betting"
    assert rate.mean_interval.method != "betting"


def test_a_cap_ends_what_does_not_become_precise():
    found = locally(until_halfwidth=1e-6, max_trajectories=50)
    assert len(found) == 50
    assert "there were 50 trajectories, the most" in found.stopped
    seeds = range(100, 160)
    assert locally(until_halfwidth=1e-6, seeds=seeds).seeds == tuple(seeds)
    assert locally(until_halfwidth=1e6, seeds=seeds).seeds == tuple(seeds[:30])


def test_scenarios_survive_workers_that_are_killed(tmp_path):
    scenarios = [{"seed": 100 + number, "options": {"level": number}, "name": f"n{number}"} for number in range(40)]
    quiet = locally(scenarios=scenarios)
    faults = Faults(tmp_path, Fault("kill", "reset"), Fault("kill", "step", step=1))
    with MultiprocessingSampler(zero, faults.env(Known), n_workers=2, check=None) as sampler:
        killed = evaluate(sampler=sampler, scenarios=scenarios)
        assert sampler.stats.restarts <= faults.fired() == 2
    assert killed.returns.tolist() == quiet.returns.tolist() == [value_of(100 + n, n) for n in range(40)]
    assert killed.names == quiet.names


def test_no_worker_runs_far_beyond_the_end():
    with LocalSampler(zero, Known, seed=1) as sampler:
        evaluate(sampler=sampler, num_trajectories=50)
        assert sampler.stats.surplus_trajectories == 0


# ---------------------------------------------------------------------- success, ends, what is left out


@pytest.mark.parametrize("key", ["success", "is_success"])
def test_successes_at_the_end_and_at_any_time(key):
    seeds = range(12)
    env = functools.partial(Known, success=key)
    end = locally(env=env, seeds=seeds)
    once = locally(env=env, seeds=seeds, success="once")
    assert end.successes.tolist() == [seed % 4 == 0 for seed in seeds]
    assert once.successes.tolist() == [seed % 4 == 0 or seed % 3 == 0 for seed in seeds]
    assert end.success_rate == 0.25
    assert end.success_interval == wilson_interval(3, 12)
    nothing = locally(seeds=seeds)
    assert (nothing.successes, nothing.success_rate, nothing.success_interval) == (None, None, None)


def test_ends_are_told_apart():
    found = locally(seeds=range(10))
    assert found.shares == {"terminated": 0.5, "truncated": 0.5, "cut": 0}
    cut = locally(seeds=range(10), sampler_options={"max_episode_length": 2})
    assert cut.shares == {"terminated": 0, "truncated": 0, "cut": 1}
    assert set(cut.ends) == {"cut"}


def test_what_raises_ends_the_evaluation_or_is_left_out():
    env = functools.partial(Known, fails=(3, 5))
    with pytest.raises(RolloutError, match="seed 3 fails"):
        locally(env=env, seeds=range(8))
    found = locally(env=env, seeds=range(8), sampler_options={"on_failure": "drop"})
    assert found.seeds == (0, 1, 2, 4, 6, 7)
    assert found.left_out == 2
    assert "2 trajectories raised and are left out" in str(found)
    names = [{"seed": seed, "name": f"seed {seed}"} for seed in range(8)]
    named = locally(env=env, scenarios=names, sampler_options={"on_failure": "drop"})
    assert named["seed 6"].value == value_of(6)
    with pytest.raises(KeyError):
        named["seed 5"]


# ---------------------------------------------------------------------- agents


def test_agents_with_predict_are_deterministic_unless_told_otherwise():
    seeds = [1, 2]
    assert evaluate(Better(), Known, seeds=seeds, n_workers=0).returns.tolist() == [
        value_of(seed) + 1 for seed in seeds
    ]
    drawn = evaluate(Better(), Known, seeds=seeds, deterministic=False, n_workers=0)
    assert drawn.returns.tolist() == [value_of(seed) for seed in seeds]
    assert drawn.agent == {"name": "Better", "deterministic": False}
    assert str(drawn).startswith("Better in Known: 2 trajectories")
    with pytest.raises(UsageError, match="deterministic is for agents with predict"):
        evaluate(zero, Known, seeds=seeds, deterministic=True)
    with pytest.raises(UsageError, match="vec_normalize is for"):
        evaluate(zero, Known, seeds=seeds, vec_normalize="file.pkl")


def test_the_agent_has_a_name_that_is_the_same_each_time():
    assert evaluate(zero, Known, seeds=[1], n_workers=0).agent == {"name": "zero"}
    assert evaluate("random", Known, seeds=[1], n_workers=0).agent == {"name": "RandomAgent"}
    assert " at 0x" not in str(evaluate(lambda _: 0, Known, seeds=[1], n_workers=0))


# ---------------------------------------------------------------------- numbers, text, files


def test_what_decides_about_trajectories_is_noted():
    class Nothing:
        pass

    found = evaluate(
        zero, Known, seeds=[1], n_workers=0, worker_class=VecWorker, worker_args={"n_envs": 2}, max_episode_length=50,
        env_kwargs={"success": "success", "fails": (5, Nothing)},
    )  # fmt: skip
    name = f"{Nothing.__qualname__}"
    assert found.settings["env_kwargs"] == {"success": "success", "fails": [5, name]}
    assert (found.settings["worker_class"], found.settings["worker_args"]) == ("VecWorker", {"n_envs": 2})
    assert found.settings["max_episode_length"] == 50
    assert Evaluation.from_json(found.to_json()) == found


def test_numbers_are_those_of_the_returns():
    found = locally(num_trajectories=64)
    returns = found.returns
    assert found.mean == returns.mean()
    assert found.standard_deviation == returns.std(ddof=1)
    assert found.standard_error == pytest.approx(returns.std(ddof=1) / 8)
    assert found.median == np.median(returns)
    assert (found.minimum, found.maximum) == (returns.min(), returns.max())
    assert found.mean in found.mean_interval
    assert found.median in found.median_interval
    assert found.interquartile_mean in found.interquartile_mean_interval
    text = str(found).splitlines()
    assert text[0] == "the sampler's agent in Known: 64 trajectories"
    line = next(line for line in text if "mean return" in line)
    assert line.split()[2] == f"{found.mean:.5g}"
    assert line.endswith("]  t")
    assert any("percentile bootstrap" in line for line in text)
    assert text[-1] == "stopped: as many as were asked for"
    with pytest.raises(ValueError, match="read-only"):
        returns[0] = 0


def test_few_trajectories_have_no_interval():
    few = locally(seeds=range(9))
    assert few.mean_interval == Unknown("9 trajectories, fewer than 10")
    assert "no interval holds: 9 trajectories, fewer than 10" in str(few)
    uneven = locally(env=functools.partial(Known, returns="rare"), seeds=range(20))
    assert isinstance(uneven.mean_interval, Unknown)
    one = locally(seeds=[7])
    assert "nan" in str(one)
    same = locally(env=functools.partial(Known, returns="rare"), seeds=[1] * 60)
    assert "all returns are equal; with 95 % confidence at most 4.87 % of trajectories have another one" in str(same)


def test_what_is_saved_is_loaded_again(tmp_path):
    scenarios = [{"seed": seed, "name": f"number {seed}"} for seed in range(12)]
    for found in (
        locally(env=SUCCEEDS, scenarios=scenarios),
        locally(seeds=[1]),
        locally(until_halfwidth=9, guarantee=True, bounds=(-10, 30)),
        locally(env=functools.partial(Known, fails=(1,)), seeds=range(4), sampler_options={"on_failure": "drop"}),
    ):
        path = found.save(tmp_path / "found.json")
        assert Evaluation.load(path) == found
        assert Evaluation.from_json(found.to_json()) == found
        assert str(Evaluation.load(path)) == str(found)
        facts = json.loads(path.read_text())
        assert facts["summary"]["mean"] == found.mean
        assert facts["versions"]["numpy"] == np.__version__
        assert facts["package_version"] == streamsampler.__version__


def test_returns_that_are_not_finite_are_saved_and_have_no_interval():
    found = locally(scenarios=[{"options": {"level": float("inf")}}, *[{}] * 40])
    assert found.mean_interval == Unknown("a return is not finite")
    assert Evaluation.from_json(found.to_json()) == found
    with pytest.raises(AssertionError):
        assert "Infinity" in found.to_json()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda facts: facts.pop("returns"), "'returns' is missing"),
        (lambda facts: facts["lengths"].pop(), "columns of one length"),
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
    with pytest.raises(StorageError, match="is no JSON"):
        Evaluation.load(path)


# ---------------------------------------------------------------------- wrong arguments, Ctrl-C, progress


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "how many\\? Give num_trajectories, seeds, scenarios or until_halfwidth"),
        ({"num_trajectories": 0}, "num_trajectories must be at least 1"),
        ({"num_trajectories": 3, "seeds": [1]}, "num_trajectories is 3, but there are 1 seeds"),
        ({"seeds": []}, "seeds is empty"),
        ({"seeds": 5}, "seeds must be a sequence"),
        ({"seeds": [1.5]}, r"seeds\[0\] must be an integer"),
        ({"seeds": [1], "scenarios": [{}]}, "scenarios have seeds of their own"),
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
        ({"until_halfwidth": 1, "scenarios": [{}]}, "leave out scenarios"),
        ({"until_halfwidth": 1, "min_trajectories": 29}, "min_trajectories must be at least 30"),
        ({"until_halfwidth": 1, "precision_of": "success"}, "must be below 0.5"),
        ({"until_halfwidth": 1, "precision_of": "length"}, 'precision_of must be "return" or "success"'),
        ({"until_halfwidth": 1, "guarantee": True}, "guarantee=True needs bounds"),
        ({"until_halfwidth": 1, "bounds": (0, 1)}, "bounds are for guarantee=True"),
        ({"until_halfwidth": 1, "guarantee": True, "bounds": (0, 1)}, "bounds are .0, 1., and there is a value of"),
        ({"until_halfwidth": 1, "guarantee": True, "bounds": 5}, "bounds must be .least, largest., two numbers"),
        ({"until_halfwidth": 1, "seeds": [1], "max_trajectories": 2}, "max_trajectories is 2, but there are 1 seeds"),
        ({"num_trajectories": 5, "guarantee": True}, "guarantee is for until_halfwidth"),
        ({"num_trajectories": 5, "success": "twice"}, 'success must be "end" or "once"'),
        (
            {"until_halfwidth": 0.1, "precision_of": "success"},
            "no info of the first 10 trajectories has a key 'success'",
        ),
        ({"num_trajectories": 5, "n_workers": 3}, "the sampler has its arguments already: leave out n_workers"),
        ({"num_trajectories": 5, "deterministic": True}, "for an agent that is given with them"),
    ],
)
def test_arguments_that_cannot_work_are_refused(arguments, message):
    with LocalSampler(zero, Known, seed=1) as sampler, pytest.raises(UsageError, match=message):
        evaluate(sampler=sampler, **arguments)


def test_there_must_be_an_agent_an_environment_and_an_order():
    with pytest.raises(UsageError, match="evaluate takes an agent and an environment"):
        evaluate(zero, num_trajectories=5)
    with pytest.raises(UsageError, match="not a str"):
        evaluate(sampler="local", num_trajectories=5)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="favours short"):
        evaluate(zero, Known, num_trajectories=5, order="arrival")
    with LocalSampler(zero, Known, order="arrival") as sampler, pytest.raises(UsageError, match="favours short"):
        evaluate(sampler=sampler, num_trajectories=5)


class Interrupting:
    """A display that sends Ctrl-C after some trajectories."""

    interval = 0.0

    def __call__(self, snapshot):
        if snapshot.trajectories >= 12:
            raise KeyboardInterrupt


def test_what_is_finished_survives_ctrl_c():
    whole = locally(num_trajectories=2_000)
    with pytest.raises(KeyboardInterrupt) as caught:
        locally(num_trajectories=2_000, progress=Interrupting())
    assert isinstance(caught.value, EvaluationInterruptedError)
    found = caught.value.found
    assert 12 <= len(found) < 2_000
    assert np.array_equal(found.returns, whole.returns[: len(found)])
    assert found.stopped == "interrupted"


def test_progress_shows_the_interval():
    shown = []
    found = locally(until_halfwidth=0.5, progress=shown.append)
    assert shown[-1].complete
    assert shown[-1].trajectories == len(found)
    assert shown[-1].timesteps == LENGTH * len(found)
    assert shown[-1].note.startswith(f"return {found.mean:.4g} ± ")
    assert shown[-1].note.endswith(", to ± 0.5")
    assert shown[-1].target == len(found), "a precision that is reached is not 100 % of its cap"
    assert describe(shown[-1])[2] == shown[-1].note
    plain = []
    locally(num_trajectories=40, progress=plain.append)
    assert plain[-1].note.startswith("return ")
    assert plain[-1].target == 40


# ---------------------------------------------------------------------- what cannot be closed


class NeverClosed(Known):
    def close(self):
        raise RuntimeError("it is stuck")


@pytest.mark.parametrize("n_workers", [0, 1])
@pytest.mark.usefixtures("patient")  # a worker that is slow to say so would be killed
def test_what_was_found_is_not_lost_where_an_environment_cannot_be_closed(n_workers, caplog):
    patience: dict[str, Any] = {"close_timeout": PATIENCE} if n_workers else {}
    expected = evaluate(zero, Known, num_trajectories=5, seed=3, n_workers=0)
    found = evaluate(zero, NeverClosed, num_trajectories=5, seed=3, n_workers=n_workers, check=None, **patience)
    assert np.array_equal(found.returns, expected.returns)
    assert "closing the sampler raised" in caplog.text
    assert "it is stuck" in caplog.text
    compared = streamsampler.compare([zero, Better()], NeverClosed, num_trajectories=5, seed=3, n_workers=0, check=None)
    assert len(compared.evaluations) == 2
