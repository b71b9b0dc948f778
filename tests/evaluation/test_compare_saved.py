"""Saved evaluations are compared: paired by seed, and only if they measured the same."""

import functools
from typing import Any

import pytest

from streamsampler import VecWorker, compare, evaluate
from streamsampler.errors import UsageError
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.filters import RunningNorm
from tests.evaluation.envs import Better, Known, value_of, zero

SUCCEEDS = functools.partial(Known, success="is_success")


def evaluated(agent=zero, env=SUCCEEDS, **options):
    return evaluate(agent, env, n_workers=0, **options)


def test_it_is_the_comparison_of_the_agents(tmp_path):
    run = compare({"zero": zero, "better": Better()}, SUCCEEDS, n_trajectories=40, seed=3, n_workers=0)
    saved = {"zero": zero, "better": Better()}
    for name, agent in saved.items():
        evaluated(agent, n_trajectories=40, seed=3, out=tmp_path / f"{name}.json")
    loaded = {name: Evaluation.load(tmp_path / f"{name}.json") for name in saved}
    assert compare(loaded, out=tmp_path / "both.json").to_json() == run.to_json()
    assert Comparison.load(tmp_path / "both.json") == run
    assert compare(list(loaded.values())).names == ("zero", "Better")
    assert compare([loaded["zero"], loaded["zero"]]).names == ("zero", "zero #2")


def test_scenarios_are_paired_where_seeds_are_there_twice():
    scenarios = [{"seed": n % 5, "options": {"level": n}} for n in range(20)]
    run = compare([zero, Better()], SUCCEEDS, scenarios=scenarios, n_workers=0)
    saved = [evaluated(agent, scenarios=scenarios) for agent in (zero, Better())]
    assert compare(saved).to_json() == run.to_json()
    other = evaluated(Better(), scenarios=[{**each, "options": {"level": 1}} for each in scenarios[:5]])
    with pytest.raises(UsageError, match=r"seed 0 is reset with the options .*0.* in one evaluation, and with .*1"):
        compare([saved[0], other])
    with pytest.raises(UsageError, match="20 trajectories have 5 seeds, so a seed does not identify a pair"):
        compare([saved[0], evaluated(Better(), seeds=[3, 4, 77])])


def test_pairs_are_those_of_the_same_seeds(tmp_path):
    first, second = evaluated(seeds=range(20)), evaluated(Better(), seeds=range(29, 4, -1))
    found = compare([first, second])
    (pairs,) = found.pairs
    assert (len(pairs), pairs.differences.tolist()) == (15, [pytest.approx(1)] * 15)
    assert pairs.returns[0].tolist() == [value_of(seed) for seed in range(5, 20)]
    assert "note: 15 pairs with common seeds: zero has 20 trajectories, and Better 25\n" in str(found)
    found.save(tmp_path / "x.json")
    assert (Comparison.load(tmp_path / "x.json"), str(Comparison.load(tmp_path / "x.json"))) == (found, str(found))
    assert "note: " not in str(compare([first, evaluated(Better(), seeds=range(20))]))
    third = evaluated("random", seeds=range(10, 40))
    assert list(map(len, compare([first, second, third]).pairs)) == [15, 10]
    longer = compare([evaluated(n_trajectories=40, seed=1), evaluated(Better(), n_trajectories=30, seed=1)])
    assert len(longer.pairs[0]) == 30
    apart = "zero and Better have no common seed, so no pairs"
    for name, amount in (("seed", {"n_trajectories": 9}), ("seeds", {})):
        one, other = ({name: value if amount else [value], **amount} for value in (1, 2))
        with pytest.raises(UsageError, match=apart):
            compare([evaluated(**one), evaluated(Better(), **other)])


def test_what_did_not_measure_the_same_is_refused(caplog):
    first = evaluated(n_trajectories=12, seed=3)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"max_episode_length": 2}, "measured under different conditions: max_episode_length is None in zero, and 2"),
        ({"env": "CartPole-v1"}, "environment is 'Known' in zero, and 'CartPole-v1' in other"),
        ({"success": "once"}, "success is 'end' in zero, and 'once' in other"),
        ({"worker_class": VecWorker}, "worker_class is None in zero, and 'VecWorker' in other"),
        ({"part": (1, 2)}, "other is part 1 of 2: merge all parts before"),
        ({"bounds": (0, 50)}, r"bounds are None in zero, and \(0.0, 50.0\) in other: give bounds for both"),
    ]  # fmt: skip
    for options, words in refused:
        other = evaluated(**{"n_trajectories": 12, "seed": 3, **options})
        with pytest.raises(UsageError, match=words):
            compare({"zero": first, "other": other})
    caplog.clear()
    bounded = compare([first, other], bounds=(0, 50))
    assert bounded.bounds == (0, 50)
    assert not caplog.records
    filtered = evaluated(Better(), n_trajectories=12, seed=3, observation_filter=RunningNorm())
    assert len(compare([first, filtered]).pairs[0]) == 12, "the statistics of filters are the agent's"
    text = first.to_json().replace('"numpy": "', '"numpy": "0.').replace('"numpy=', '"numpy=x')
    compare([first, Evaluation.from_json(text.replace('"as many as were asked for"', '"interrupted"'))])
    assert "zero and zero #2 were sampled with different libraries: the version of numpy is" in caplog.text
    assert "the evaluations were sampled where numpy computes with other kernels" in caplog.text
    assert "zero #2 was interrupted: only its finished trajectories are compared" in caplog.text
    both = [Evaluation.from_json(first.to_json().replace('"as many as were asked for"', '"interrupted"'))] * 2
    assert compare(both).stopped == "saved evaluations: interrupted"


def test_what_is_for_agents_that_run_is_refused():
    first, second = evaluated(seeds=range(9)), evaluated(Better(), seeds=range(9))
    given: list[dict[str, Any]] = [{"env": SUCCEEDS}, {"n_trajectories": 9}, {"seed": 1}, {"resume": "x.json"}]
    for options in given:
        with pytest.raises(UsageError, match=f"give the agents, to run them; or leave out {next(iter(options))}"):
            compare([first, second], **options)
    with pytest.raises(UsageError, match=r"zero is a saved evaluation, not an agent: .*; or evaluate Better on"):
        compare([first, Better()], SUCCEEDS, n_trajectories=9)
    with pytest.raises(UsageError, match=r"only saved evaluations, loaded with Evaluation.load, need none"):
        compare(["x.json", "y.json"])
    with pytest.raises(UsageError, match="at least two agents, got 1"):
        compare([first])
