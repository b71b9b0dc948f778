"""Parts of a run, merged: the bytes of one run, and what is refused."""

import functools
from typing import Any

import pytest

from streamsampler import LocalSampler, VecWorker, compare, evaluate, merge
from streamsampler.errors import StorageError, UsageError
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.gathering import Gathering
from tests.evaluation.envs import Better, Known, zero

N = 23
SUCCEEDS = functools.partial(Known, success="is_success")


def evaluated(part, path, env=SUCCEEDS, seed=3, **options):
    amount: dict[str, Any] = {"num_trajectories": N} if not {"seeds", "scenarios"} & options.keys() else {}
    return evaluate(zero, env, seed=seed, n_workers=0, part=part, **amount, **options).save(path)


def in_parts(make, folder, of, suffix="", **options):
    return [make((number, of), folder / f"part-{number}{suffix}", **options) for number in range(of, 0, -1)]


# ---------------------------------------------------------------------- the same bytes


@pytest.mark.parametrize("of", [3, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 7))])
def test_evaluations_of_parts_become_that_of_one_run(tmp_path, of):
    seeds = [number * 7 % 31 for number in range(N)]
    scenarios = [{"seed": seed, "name": f"s{seed}", "options": {"level": seed}} for seed in seeds]
    forms: list[dict[str, Any]] = [{}, {"seeds": seeds, "seed": None}, {"scenarios": scenarios}]
    for number, options in enumerate(forms):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        evaluated(None, folder / "whole.json", **options)
        found = merge(in_parts(evaluated, folder, of, ".json", **options), folder / "merged.json")
        assert isinstance(found, Evaluation)
        assert (folder / "merged.json").read_bytes() == (folder / "whole.json").read_bytes()
        assert found == Evaluation.load(folder / "whole.json")
        part = Evaluation.load(folder / f"part-{of}.json")
        assert part.indices[-1] == N - 1
        assert f"{len(part)} trajectories, part {of} of {of}\n" in str(part)


def test_comparisons_of_parts_become_that_of_one_run(tmp_path):
    agents = {"zero": zero, "better": Better()}

    def compared(part, path):
        return compare(agents, SUCCEEDS, num_trajectories=N, seed=3, n_workers=0, part=part).save(path)

    compared(None, tmp_path / "whole.json")
    parts = in_parts(compared, tmp_path, 3, ".json")
    found = merge(map(str, parts), tmp_path / "merged.json")
    assert (tmp_path / "merged.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert found == Comparison.load(tmp_path / "whole.json")
    assert "on the same seeds, part 2 of 3\n" in str(Comparison.load(parts[1]))


@pytest.mark.parametrize("args", [{"n_envs": 4}, {"n_envs": 2, "block_size": 6}])
def test_parts_of_environments_side_by_side_are_cut_at_blocks(tmp_path, args):
    vec: dict[str, Any] = {"worker_class": VecWorker, "worker_args": args, "env": "CartPole-v1"}
    whole = evaluated(None, tmp_path / "whole.json", **vec)
    parts = in_parts(evaluated, tmp_path, 3, ".json", **vec)
    merge(parts, tmp_path / "merged.json")
    assert (tmp_path / "merged.json").read_bytes() == whole.read_bytes()
    block = args.get("block_size", args["n_envs"])
    assert all(Evaluation.load(part).indices[0] % block == 0 for part in parts)
    with pytest.raises(UsageError, match=f"in blocks of {block}, which are run together, cannot be cut into 7 parts"):
        evaluated((1, 7), tmp_path / "x.json", **vec)


def test_what_seeds_leave_out_is_left_out_of_the_whole(tmp_path):
    fails = {"env": functools.partial(Known, fails=(4, 15)), "seeds": list(range(N)), "on_failure": "drop"}
    evaluated(None, tmp_path / "whole.json", **fails)
    merge(in_parts(evaluated, tmp_path, 4, ".json", **fails), tmp_path / "merged.json")
    assert (tmp_path / "merged.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert Evaluation.load(tmp_path / "merged.json").left_out == 2


class Unsure(Known):
    """Says only for some seeds whether it succeeded."""

    def step(self, action):
        self.success = "success" if self.seed == 20 else None
        return super().step(action)


def test_successes_that_only_one_part_knows_of(tmp_path):
    options = {"env": Unsure, "seeds": range(N)}
    evaluated(None, tmp_path / "whole.json", **options)
    merge(in_parts(evaluated, tmp_path, 3, ".json", **options), tmp_path / "merged.json")
    assert (tmp_path / "merged.json").read_bytes() == (tmp_path / "whole.json").read_bytes()
    assert Evaluation.load(tmp_path / "part-1.json").successes is None


# ---------------------------------------------------------------------- what is refused


def test_missing_and_doubled_parts_are_named(tmp_path):
    out = tmp_path / "out.json"
    one, two, three = reversed(in_parts(evaluated, tmp_path, 3, ".json"))
    copied = evaluated((2, 3), tmp_path / "copied.json")
    with pytest.raises(UsageError, match="part 2 of 3 is missing"):
        merge([three, one], out)
    with pytest.raises(UsageError, match=r"part 2 of 3 is there twice: .*part-2.json and .*copied.json$"):
        merge([one, two, three, copied], out)
    with pytest.raises(UsageError, match=r"part-2.json is given twice"):
        merge([one, two, three, two], out)
    whole = evaluated(None, tmp_path / "whole.json")
    with pytest.raises(UsageError, match=r"whole.json is no part: it holds what a whole run sampled"):
        merge([one, two, three, whole], out)
    with pytest.raises(UsageError, match=r"part-2.json is one of the parts"):
        merge([one, two, three], two)
    with pytest.raises(UsageError, match=r"part 1 of 3 of 23 trajectories, and .* is part 2 of 2 of 23"):
        merge([one, evaluated((2, 2), tmp_path / "other.json")], out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"seed": 4}, "seed is 3 in .*part-1.*, and 4 in .*other"),
        pytest.param(
            {"max_episode_length": 2},
            "max_episode_length is None in .*part-1.*, and 2 in .*other",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            {"env": "CartPole-v1"},
            "environment is '.*' in .*part-1.*, and 'CartPole-v1' in .*other",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_parts_of_different_runs_are_told_apart(tmp_path, options, words):
    one, other = evaluated((1, 2), tmp_path / "part-1.json"), evaluated((2, 2), tmp_path / "other.json", **options)
    with pytest.raises(UsageError, match=f"the parts are of different runs: .*{words}"):
        merge([one, other], tmp_path / "out")


def test_parts_of_one_kind(tmp_path):
    compare([zero, Better()], SUCCEEDS, num_trajectories=N, seed=3, n_workers=0, part=(1, 2)).save(tmp_path / "1.json")
    parts = tmp_path / "1.json", evaluated((2, 2), tmp_path / "2.json")
    with pytest.raises(UsageError, match=r"1.json is a comparison, and .*2.json is an evaluation: merge"):
        merge(parts, tmp_path / "out")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(StorageError, match=r"x.json is no part: it holds neither an evaluation nor a comparison"):
        merge([parts[0], tmp_path / "x.json"], tmp_path / "out")
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        sampler.obtain_trajectories(1).save(tmp_path / "x.npz")
    with pytest.raises(StorageError, match=r"x.npz is no part: it is a file of trajectories, and only evaluations"):
        merge([tmp_path / "x.npz"], tmp_path / "out")
    with pytest.raises(UsageError, match="nothing to merge"):
        merge([], tmp_path / "out")
    with pytest.raises(UsageError, match="several files"):
        merge("part-*.npz", tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        merge([tmp_path / "nowhere.npz"], tmp_path / "out")
    parts[1].write_bytes(parts[1].read_bytes()[:-20])
    with pytest.raises(StorageError, match=r"2.json"):
        merge([parts[1]], tmp_path / "out")


def test_an_output_that_is_there_is_replaced(tmp_path):
    parts = in_parts(evaluated, tmp_path, 2, ".json")
    (tmp_path / "out.json").write_text("before")
    merge(parts, tmp_path / "out.json")
    assert len(Evaluation.load(tmp_path / "out.json")) == N


def test_a_part_that_was_interrupted_is_not_taken_for_a_whole_one(tmp_path, monkeypatch):
    one = evaluated((1, 2), tmp_path / "1.json")
    take, left = Gathering.take, iter([True] * 4)

    def taking(self):
        if next(left, False):
            return take(self)
        raise KeyboardInterrupt

    monkeypatch.setattr(Gathering, "take", taking)
    with pytest.raises(EvaluationInterruptedError) as caught:
        evaluated((2, 2), tmp_path / "2.json")
    caught.value.found.save(tmp_path / "2.json")
    with pytest.raises(UsageError, match=r"2.json, part 2 of 2, has 4 of 12 trajectories: run this part again"):
        merge([one, tmp_path / "2.json"], tmp_path / "out.json")


@pytest.mark.slow
def test_parts_of_other_kernels_are_merged_with_a_warning(tmp_path, caplog):
    one, two = (evaluated((number, 2), tmp_path / f"{number}.json") for number in (1, 2))
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
        (
            lambda **o: evaluate(zero, Known, until_halfwidth=1, seed=1, **o),
            "where until_halfwidth stops is known only",
        ),
        (lambda **o: evaluate(zero, Known, num_trajectories=9, **o), "would draw a seed of its own: give seed=…"),
        (
            lambda **o: evaluate(zero, Known, num_trajectories=9, seed=1, on_failure="drop", **o),
            'cannot be sampled with on_failure="drop": what is left out would be replaced',
        ),
        (lambda **o: compare([zero, Better()], Known, num_trajectories=9, **o), "would draw a seed of its own"),
        (
            lambda **o: compare([zero, Better()], Known, until_decided=0.05, bounds=(0, 9), seed=1, **o),
            "when until_decided is sure is known only when all pairs before are there",
        ),
    ],
)
def test_what_has_no_parts(call, words):
    with pytest.raises(UsageError, match=words):
        call(part=(1, 2))


def test_more_parts_than_trajectories():
    with pytest.raises(UsageError, match="3 trajectories cannot be cut into 4 parts"):
        evaluate(zero, Known, num_trajectories=3, seed=1, n_workers=0, part=(4, 4))
    with pytest.raises(UsageError, match=r"there is no part 5 of 4: a part is two integers"):
        evaluate(zero, Known, num_trajectories=3, seed=1, n_workers=0, part=(5, 4))
