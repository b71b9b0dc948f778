"""Parts of a run, merged: the bytes of one run, and what is refused."""

import functools
from typing import Any

import pytest

from streamsampler import LocalSampler, VecWorker, compare, evaluate, merge
from streamsampler.errors import StorageError, UsageError
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.evaluation_call import EvaluationCall
from tests.evaluation.envs import Better, Known, zero

N = 23
SUCCEEDS = functools.partial(Known, success="is_success")
SEEDS = [number * 7 % 31 for number in range(N)]


class Unsure(Known):
    """Says only for some seeds whether it succeeded."""

    def step(self, action):
        self.success = "success" if self.seed == 20 else None
        return super().step(action)


def evaluated(part, path, env=SUCCEEDS, **options):
    amount: dict[str, Any] = {} if {"seeds", "scenarios"} & options.keys() else {"num_trajectories": N}
    return evaluate(zero, env, n_workers=0, part=part, **{"seed": 3, **amount, **options}).save(path)


def compared(part, path, **options):
    return compare([zero, Better()], SUCCEEDS, num_trajectories=N, seed=3, n_workers=0, part=part).save(path)


def parts_of(make, folder, of=3, **options):
    """Write all parts of a run, the last one first, and return their paths in order."""
    return [make((number, of), folder / f"part-{number}.json", **options) for number in range(of, 0, -1)][::-1]


VEC: dict[str, Any] = {"worker_class": VecWorker, "env": "CartPole-v1"}


@pytest.mark.parametrize(
    ("make", "options"),
    [
        (evaluated, {}),
        (evaluated, {"seeds": SEEDS, "seed": None}),
        (evaluated, {"scenarios": [{"seed": seed, "name": f"s{seed}", "options": {"level": seed}} for seed in SEEDS]}),
        (evaluated, {"env": functools.partial(Known, fails=(4, 15)), "seeds": range(N), "on_failure": "drop"}),
        (evaluated, {"env": Unsure, "seeds": range(N)}),
        (evaluated, {"bounds": (-100, 100)}),
        (evaluated, {**VEC, "worker_args": {"n_envs": 4}}),
        (evaluated, {**VEC, "worker_args": {"n_envs": 2, "block_size": 6}}),
        (compared, {}),
    ],
    ids=[
        "a number",
        "seeds",
        "scenarios",
        "left out",
        "successes of one part",
        "bounds",
        "lanes",
        "blocks",
        "comparison",
    ],
)
def test_parts_become_the_bytes_of_one_run(tmp_path, make, options):
    whole = make(None, tmp_path / "whole.json", **options)
    parts = parts_of(make, tmp_path, **options)
    found = merge(map(str, reversed(parts)), tmp_path / "merged.json")
    assert (tmp_path / "merged.json").read_bytes() == whole.read_bytes()
    kind: Any = Evaluation if make is evaluated else Comparison
    assert found == kind.load(whole)
    assert "part 2 of 3\n" in str(kind.load(parts[1]))
    if "worker_args" in options:
        block = options["worker_args"].get("block_size", options["worker_args"]["n_envs"])
        assert all(Evaluation.load(part).indices[0] % block == 0 for part in parts)
        with pytest.raises(UsageError, match=f"in blocks of {block}, run together, cannot be split into 7 par"):
            evaluated((1, 7), tmp_path / "x.json", **options)


def test_parts_that_do_not_make_a_whole_are_named(tmp_path, monkeypatch):
    out = tmp_path / "out.json"
    one, two, three = parts_of(evaluated, tmp_path)
    copied = evaluated((2, 3), tmp_path / "copied.json")
    whole = evaluated(None, tmp_path / "whole.json")
    of_two = evaluated((2, 2), tmp_path / "of-two.json")
    others: list[dict[str, Any]] = [{"seed": 4}, {"max_episode_length": 2}, {"env": "CartPole-v1"}]
    seed, limit, env = (evaluated((2, 3), tmp_path / f"other-{n}.json", **it) for n, it in enumerate(others))
    (tmp_path / "x.json").write_text("{}")
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        trajectories = sampler.obtain_trajectories(1).save(tmp_path / "x.npz")
    cut = tmp_path / "cut.json"
    cut.write_bytes(two.read_bytes()[:-20])
    takes, take = iter([True] * 4), EvaluationCall.take

    def taking(self):
        if next(takes, False):
            return take(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(EvaluationCall, "take", taking)
    with pytest.raises(EvaluationInterruptedError) as caught:
        evaluated((3, 3), tmp_path / "interrupted.json")
    interrupted = caught.value.found.save(tmp_path / "interrupted.json")
    monkeypatch.undo()
    refused: list[tuple[Any, type[Exception], str]] = [
        ([three, one], UsageError, "part 2 of 3 is missing"),
        ([one, two, three, copied], UsageError, "part 2 of 3 was given twice: .*part-2.json and .*copied.json$"),
        ([one, two, three, two], UsageError, "part-2.json is repeated"),
        ([one, two, three, whole], UsageError, "whole.json is no part: it holds all trajectories of a run"),
        ([one, of_two], UsageError, "part 1 of 3 of 23 trajectories, and .* is part 2 of 2 of 23"),
        ([one, seed], UsageError, "the parts are of different runs: .*seed is 3 in .*part-1.*, and 4 in .*other"),
        ([one, limit], UsageError, "different runs: .*max_episode_length is None in .*part-1.*, and 2 in .*other"),
        ([one, env], UsageError, "different runs: .*environment is '.*' in .*part-1.*, and 'CartPole-v1' in .*other"),
        ([compared((1, 3), tmp_path / "c.json"), two], UsageError, "c.json is a comparison, and .*2.json is an eval"),
        ([one, two, interrupted], UsageError, "interrupted.json, part 3 of 3, has 4 of 8 trajectories: run this part"),
        ([one, tmp_path / "x.json"], StorageError, "x.json is no part: it has neither an evaluation nor a compar"),
        ([trajectories], StorageError, "x.npz is no part: it is a file of trajectories, and only evaluations"),
        ([cut], StorageError, "cut.json"),
        ([], UsageError, "no parts to merge"),
        ("part-*.npz", UsageError, "several files"),
        ([tmp_path / "nowhere.json"], FileNotFoundError, "nowhere.json"),
    ]
    for given, error, words in refused:
        with pytest.raises(error, match=words):
            merge(given, out)
    with pytest.raises(UsageError, match=r"part-2.json is one of the parts"):
        merge([one, two, three], two)
    with pytest.raises(UsageError, match="merge needs a file for the whole run"):
        merge([one, two, three])
    assert not out.exists()
    out.write_text("before")
    merge([one, two, three], out)
    assert out.read_bytes() == whole.read_bytes()


def test_parts_of_other_kernels_are_merged_with_a_warning(tmp_path, caplog):
    one, two = parts_of(evaluated, tmp_path, of=2)
    merge([one, two], tmp_path / "merged.json")
    assert not caplog.records
    own = Evaluation.load(one).settings["fingerprints"]
    two.write_text(two.read_text().replace(own[0], "numpy=0123456789ab"))
    merge([two, one], tmp_path / "merged.json")
    assert "numpy computes with other kernels" in caplog.text
    assert f"numpy=0123456789ab in {two}" in caplog.text
    assert Evaluation.load(tmp_path / "merged.json").settings["fingerprints"] == sorted([*own, "numpy=0123456789ab"])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ({"until_halfwidth": 1, "seed": 1}, "until_halfwidth depends on all earlier trajectories"),
        ({"num_trajectories": 9}, "would draw another seed: give the same seed=…"),
        ({"num_trajectories": 9, "seed": 1, "on_failure": "drop"}, 'cannot be sampled with on_failure="drop"'),
        ({"num_trajectories": 9, "agents": 2}, "would draw another seed"),
        (
            {"until_decided": 0.05, "bounds": (0, 9), "seed": 1, "agents": 2},
            "until_decided depends on all earlier pairs",
        ),
        ({"num_trajectories": 3, "seed": 1, "part": (4, 4)}, "3 trajectories cannot be split into 4 parts"),
        ({"num_trajectories": 3, "seed": 1, "part": (5, 4)}, "part 5 of 4 does not exist: a part is two integers"),
    ],
)
def test_what_has_no_parts(call, words):
    options: Any = {"part": (1, 2), "n_workers": 0, **call}
    with pytest.raises(UsageError, match=words):
        compare([zero, Better()], Known, **options) if options.pop("agents", 0) else evaluate(zero, Known, **options)
