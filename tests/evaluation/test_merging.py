"""Parts of a run, merged: the bytes of one run, and what is refused."""

import dataclasses
import functools
import itertools
import json
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from streamsampler import (
    LocalSampler,
    MultiprocessingSampler,
    TrajectoryBatch,
    TrajectoryFolder,
    VecWorker,
    compare,
    evaluate,
    merge,
    sample_to_folder,
)
from streamsampler.errors import DamagedShardError, StorageError, UsageError
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.gathering import Gathering
from streamsampler.storage import npz as storage
from streamsampler.storage.manifest import read_manifest, shard_name
from streamsampler.storage.shards import ShardWriter
from tests.evaluation.envs import Better, Known, zero
from tests.storage.test_shards import Killing, in_child

N = 23
SUCCEEDS = functools.partial(Known, success="is_success")


class Motley(gym.Env):
    """Has infos whose kinds and keys depend on the seed, and a space of its own."""

    observation_space = gym.spaces.Dict(a=gym.spaces.Box(-1, 1, (2,)), b=gym.spaces.Text(4))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.kind, self.t = seed % 5, 0
        return self.observe(), {"origin": [seed] if self.kind else seed}

    def observe(self):
        return {"a": np.full(2, self.t / 9, np.float32), "b": "x" * (self.t % 3)}

    def step(self, action):
        self.t += 1
        info: dict[str, Any] = {"n": 0.5 if self.kind == 3 else 1, "f": np.float32(1) if self.kind == 1 else 1, "c": 1j}
        info |= {"big": 2**60 + 1 if self.kind == 4 else 0.5, "m": {"x": 1} if self.kind == 2 else 3}
        if self.kind == 1:
            info |= {"rare": True, "c": np.int8(2)}
        return self.observe(), 1.0, self.t > self.kind, False, info


def local(env=Motley, seed=3, **options):
    return LocalSampler("random", env, seed=seed, **options)


def saved(part, path, n_workers=1, **options):
    """Write a part of a batch, or all of it, to a file."""
    with local(**options) as sampler:
        batch = sampler.obtain_trajectories(N, part=part)
        provenance = sampler.provenance() | {"mine": [1, 2]}
        return batch.save(path, provenance=provenance)


def sharded(part, path, *, n=N, size=12, resume=False, **options):
    with local(**options) as sampler:
        sample_to_folder(sampler, path, n_trajectories=n, shard_size=size, part=part, resume=resume)
    return path


def evaluated(part, path, env=SUCCEEDS, seed=3, **options):
    amount: dict[str, Any] = {"num_trajectories": N} if not {"seeds", "scenarios"} & options.keys() else {}
    return evaluate(zero, env, seed=seed, n_workers=0, part=part, **amount, **options).save(path)


def in_parts(make, folder, of, suffix="", **options):
    return [make((number, of), folder / f"part-{number}{suffix}", **options) for number in range(of, 0, -1)]


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


# ---------------------------------------------------------------------- the same bytes


@pytest.mark.parametrize("of", [1, 3, 7])
def test_files_of_parts_become_the_file_of_one_run(tmp_path, of):
    whole = saved(None, tmp_path / "whole.npz")
    parts = in_parts(saved, tmp_path, of, ".npz")
    found = merge(parts, tmp_path / "merged")
    assert (tmp_path / "merged.npz").read_bytes() == whole.read_bytes()
    assert isinstance(found, TrajectoryBatch)
    assert found == TrajectoryBatch.load(whole)
    assert found.part is None
    assert [TrajectoryBatch.load(part).part.number for part in reversed(parts)] == list(range(1, of + 1))


@pytest.mark.parametrize(
    ("of", "size"),
    [(4, 12), *(pytest.param(*case, marks=pytest.mark.slow) for case in ((1, 12), (7, 1), (7, 30), (3, 1000)))],
)
def test_folders_of_parts_become_the_folder_of_one_run(tmp_path, of, size):
    sharded(None, tmp_path / "whole", size=size)
    found = merge(in_parts(sharded, tmp_path, of, size=size), tmp_path / "merged")
    assert contents(tmp_path / "merged") == contents(tmp_path / "whole")
    assert isinstance(found, TrajectoryFolder)
    assert found.complete
    assert len(found) == N


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
    whole = saved(None, tmp_path / "whole.npz", **vec)
    parts = in_parts(saved, tmp_path, 3, ".npz", **vec)
    merge(parts, tmp_path / "merged.npz")
    assert (tmp_path / "merged.npz").read_bytes() == whole.read_bytes()
    block = args.get("block_size", args["n_envs"])
    assert all(TrajectoryBatch.load(part).indices[0] % block == 0 for part in parts)
    with pytest.raises(UsageError, match=f"in blocks of {block}, which are run together, cannot be cut into 7 parts"):
        saved((1, 7), tmp_path / "x.npz", **vec)


@pytest.mark.slow
def test_parts_may_be_of_any_number_of_workers_and_of_per_worker_agents(tmp_path):
    agents = [lambda _: 0, lambda _: 1]
    with MultiprocessingSampler(agents, "CartPole-v1", seed=3) as sampler:
        whole = sampler.obtain_trajectories(N)
    parts = []
    for number in (1, 2, 3):
        with MultiprocessingSampler(agents, "CartPole-v1", seed=3) as sampler:
            parts.append(sampler.obtain_trajectories(N, part=(number, 3)))
    assert TrajectoryBatch.concatenate(parts) == whole
    with MultiprocessingSampler("random", "CartPole-v1", seed=3, n_workers=2) as sampler:
        sample_to_folder(sampler, tmp_path / "2", n_trajectories=N, shard_size=50, part=(2, 2))
    one = sharded((1, 2), tmp_path / "1", env="CartPole-v1", size=50)
    merge([tmp_path / "2", one], tmp_path / "merged")
    assert contents(tmp_path / "merged") == contents(sharded(None, tmp_path / "whole", env="CartPole-v1", size=50))


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


# ---------------------------------------------------------------------- killed, and continued


@pytest.mark.slow
@pytest.mark.parametrize(("of", "kills"), [((2, 3), (9, 30)), ((1, 1), (14,))])
def test_a_part_of_a_folder_is_killed_and_resumed(tmp_path, of, kills):
    expected = contents(sharded(of, tmp_path / "expected", size=5))
    for at in kills:

        def killed(at=at):
            Killing(at)
            sharded(of, tmp_path / "part", size=5, resume=True)

        assert not in_child(killed)
    sharded(of, tmp_path / "part", size=5, resume=True)
    assert contents(tmp_path / "part") == expected


@pytest.mark.slow
def test_a_damaged_shard_of_a_part_is_named(tmp_path):
    parts = [sharded((n, 3), tmp_path / f"{n}", size=5) for n in (1, 2, 3)]
    (parts[1] / shard_name(1)).write_bytes(b"broken")
    with pytest.raises(DamagedShardError, match=shard_name(1)):
        merge(parts, tmp_path / "merged")


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow), 23])
@pytest.mark.slow
def test_a_killed_merge_is_continued(tmp_path, every):
    whole = contents(sharded(None, tmp_path / "whole", size=10))
    parts = in_parts(sharded, tmp_path, 3, size=10)
    for at in itertools.count(1, every):
        out = tmp_path / f"merged-{at}"

        def killed(at=at, out=out):
            Killing(at)
            merge(parts, out)

        if in_child(killed):
            break
        if not (out.exists() and "manifest.json" in contents(out) and read_manifest(out).complete):
            merge(parts, out)
        assert contents(out) == whole
    assert at > 9


# ---------------------------------------------------------------------- what is refused


def test_missing_and_doubled_parts_are_named(tmp_path):
    for suffix, make, out in ((".npz", saved, "out.npz"), ("", sharded, "out"), (".json", evaluated, "out.json")):
        one, two, three = reversed(in_parts(make, tmp_path, 3, suffix))
        copied = make((2, 3), tmp_path / f"copied{suffix}")
        with pytest.raises(UsageError, match="part 2 of 3 is missing"):
            merge([three, one], tmp_path / out)
        with pytest.raises(UsageError, match=f"part 2 of 3 is there twice: .*part-2{suffix} and .*copied{suffix}$"):
            merge([one, two, three, copied], tmp_path / out)
        with pytest.raises(UsageError, match=f"part-2{suffix} is given twice"):
            merge([one, two, three, two], tmp_path / out)
        whole = make(None, tmp_path / f"whole{suffix}")
        with pytest.raises(UsageError, match=f"whole{suffix} is no part: it holds what a whole run sampled"):
            merge([one, two, three, whole], tmp_path / out)
        with pytest.raises(UsageError, match=f"part-2{suffix} is one of the parts"):
            merge([one, two, three], two)
        with pytest.raises(UsageError, match=r"part 1 of 3 of 23 trajectories, and .* is part 2 of 2 of 23"):
            merge([one, make((2, 2), tmp_path / f"other{suffix}")], tmp_path / out)
        assert not (tmp_path / out).exists()


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
    for suffix, make in ((".npz", saved), ("", sharded), (".json", evaluated)):
        one, other = make((1, 2), tmp_path / f"part-1{suffix}"), make((2, 2), tmp_path / f"other{suffix}", **options)
        with pytest.raises(UsageError, match=f"the parts are of different runs: .*{words}"):
            merge([one, other], tmp_path / "out")


def test_parts_of_one_kind(tmp_path):
    parts = saved((1, 2), tmp_path / "1.npz"), evaluated((2, 2), tmp_path / "2.json")
    with pytest.raises(UsageError, match=r"1.npz is a file of trajectories, and .*2.json is an evaluation: merge"):
        merge(parts, tmp_path / "out")
    (tmp_path / "x.json").write_text("{}")
    with pytest.raises(StorageError, match=r"x.json is no part: it holds neither trajectories nor"):
        merge([parts[0], tmp_path / "x.json"], tmp_path / "out")
    with pytest.raises(UsageError, match="nothing to merge"):
        merge([], tmp_path / "out")
    with pytest.raises(UsageError, match="several files"):
        merge("part-*.npz", tmp_path / "out")
    with pytest.raises(FileNotFoundError):
        merge([tmp_path / "nowhere.npz"], tmp_path / "out")
    parts[1].write_bytes(parts[1].read_bytes()[:-20])
    with pytest.raises(StorageError, match=r"2.json"):
        merge([parts[1]], tmp_path / "out")
    parts[0].write_bytes(parts[0].read_bytes()[:-20])
    with pytest.raises(StorageError, match=r"1.npz"):
        merge([parts[0]], tmp_path / "out")


def test_an_output_that_is_there(tmp_path):
    parts = in_parts(sharded, tmp_path, 2)
    merge(parts, tmp_path / "out")
    before = contents(tmp_path / "out")
    with pytest.raises(UsageError, match="holds trajectories already: name another folder"):
        merge(parts, tmp_path / "out")
    assert contents(tmp_path / "out") == before
    with ShardWriter(tmp_path / "begun") as writer:
        writer.begin(dataclasses.replace(read_manifest(tmp_path / "out"), shards=(), seed=9, complete=False))
    with pytest.raises(UsageError, match=r"was begun with other arguments: .*seed is 9 there, and 3 here"):
        merge(parts, tmp_path / "begun")
    with ShardWriter(tmp_path / "others") as writer, local(seed=9) as sampler:
        writer.begin(dataclasses.replace(read_manifest(tmp_path / "out"), shards=(), complete=False))
        writer.write(dataclasses.replace(sampler.obtain_trajectories(3), seed=3))
    with pytest.raises(UsageError, match=r"was begun with other trajectories: remove it, or name another folder"):
        merge(parts, tmp_path / "others")
    with pytest.raises(StorageError, match="being written by another process"), ShardWriter(tmp_path / "locked"):
        merge(parts, tmp_path / "locked")
    json_parts = in_parts(evaluated, tmp_path, 2, ".json")
    (tmp_path / "out.json").write_text("before")
    merge(json_parts, tmp_path / "out.json")
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


def test_a_folder_that_is_not_complete(tmp_path):
    one, two = sharded((1, 2), tmp_path / "1"), sharded((2, 2), tmp_path / "2")
    manifest = json.loads((two / "manifest.json").read_text())
    (two / "manifest.json").write_text(json.dumps(manifest | {"complete": False}))
    with pytest.raises(UsageError, match=r"2, part 2 of 2, is not complete: it lists 12 of 12 trajectories. Resume"):
        merge([one, two], tmp_path / "out")


def test_a_file_that_lacks_trajectories_of_its_part(tmp_path):
    one, two = (saved((number, 2), tmp_path / f"{number}.npz") for number in (1, 2))
    batch = TrajectoryBatch.load(two)
    storage.save(dataclasses.replace(batch[:-1], part=batch.part), two, provenance=storage.read(two)[1]["provenance"])
    with pytest.raises(UsageError, match=r"2.npz, part 2 of 2, should hold trajectories 11 to 22, and does not"):
        merge([one, two], tmp_path / "out")


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
    caplog.clear()
    for name, make in (("f", sharded), ("b", saved)):
        one, two = (make((number, 2), tmp_path / f"{name}{number}") for number in (1, 2))
        place = two / "manifest.json" if name == "f" else None
        if place is None:
            facts = storage.read(two)[1]["provenance"]
            storage.save(TrajectoryBatch.load(two), two, provenance={**facts, "fingerprints": ["numpy=0123456789ab"]})
        else:
            place.write_text(place.read_text().replace(own[0], "numpy=0123456789ab"))
        merge([one, two], tmp_path / f"merged-{name}")
        assert "numpy computes with other kernels" in caplog.text
        caplog.clear()
    assert read_manifest(tmp_path / "merged-f").fingerprints == {*own, "numpy=0123456789ab"}


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
        (lambda **o: sample_to_folder(local(), "x", num_samples=9, shard_size=9, **o), "is one of n_trajectories: how"),
        (lambda **o: local(order="arrival").obtain_trajectories(9, **o), 'a part needs order="index"'),
        (lambda **o: local(on_failure="drop").obtain_trajectories(9, **o), r"Give each trajectory a seed \(seeds="),
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
