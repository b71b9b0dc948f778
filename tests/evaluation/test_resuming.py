"""Saved evaluations go on: the bytes of one run, after every kind of end, and what is refused."""

import functools
import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import pytest

from streamsampler import LocalSampler, VecWorker, compare, evaluate
from streamsampler.errors import StorageError, UsageError
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluate import EvaluationInterruptedError
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.evaluation_call import EvaluationCall
from streamsampler.evaluation.journal import journal_lines, read_journal
from streamsampler.evaluation.run_file import RunFile
from streamsampler.filters import RunningNorm
from tests.evaluation.envs import Better, Known, zero
from tests.scripted.games import Comings
from tests.several.comparing import POLICIES
from tests.tiers import mostly_slow

SLOW = pytest.mark.slow
N = 23
SUCCEEDS = functools.partial(Known, success="is_success")
SEEDS = [number * 7 % 31 for number in range(N)]
SCENARIOS = [{"seed": seed % 5, "name": f"s{n}", "options": {"level": n}} for n, seed in enumerate(SEEDS)]
FAILS = functools.partial(Known, success="is_success", fails=(SEEDS[3], SEEDS[9], SEEDS[22]))
BRITTLE = functools.partial(Known, fails=(1213426245, 1041080479, 216572044))  # of the sampler's seed 3: 0, 2 and 39
VEC: dict[str, Any] = {"env": "CartPole-v1", "worker_class": VecWorker, "n_trajectories": N}


def evaluated(agent=zero, env=SUCCEEDS, **options):
    seed = None if {"seeds", "resume"} & options.keys() else 3
    return evaluate(agent, env, **{"n_workers": 0, "seed": seed, **options})


def compared(env=SUCCEEDS, **options):
    seed = None if "resume" in options else 3
    return compare([zero, Better(), "random"], env, n_workers=0, seed=seed, **options)


class Stopped(BaseException):
    """The end of a process, as far as it can be had in this one: nothing but closing files follows."""


def stopping(monkeypatch, n, error):
    """Let the call for the n-th trajectory raise."""
    takes, take = iter([True] * n), EvaluationCall.take

    def taking(self):
        if next(takes, False):
            return take(self)
        raise error

    monkeypatch.setattr(EvaluationCall, "take", taking)


RUNS: dict[str, Any] = {
    "a number": (evaluated, {"n_trajectories": N}),
    "seeds": (evaluated, {"seeds": SEEDS}),
    "scenarios": (evaluated, {"scenarios": SCENARIOS, "seed": None}),
    "left out": (evaluated, {"env": FAILS, "seeds": SEEDS, "on_failure": "drop"}),
    "replaced": (evaluated, {"env": BRITTLE, "n_trajectories": 40, "on_failure": "drop"}),
    "a precision": (evaluated, {"until_halfwidth": 0.6, "bounds": (0, 30)}),
    "a guarantee": (evaluated, {"until_halfwidth": 0.4, "precision_of": "success", "guarantee": True}),
    "a precision through seeds": (evaluated, {"until_halfwidth": 0.35, "precision_of": "success", "seeds": SEEDS}),
    "a part": (evaluated, {"n_trajectories": 60, "part": (2, 3)}),
    "lanes": (evaluated, {**VEC, "worker_args": {"n_envs": 4}}),
    "blocks": (evaluated, {**VEC, "worker_args": {"n_envs": 2, "block_size": 6}}),
    "a filter": (evaluated, {"n_trajectories": N, "observation_filter": RunningNorm()}),
    "several agents": (evaluated, {"agent": POLICIES, "env": Comings, "n_trajectories": 8, "return_of": "all"}),
    "workers": (evaluated, {"n_trajectories": N, "n_workers": 2}),
    "comparison": (compared, {"n_trajectories": N}),
    "a decision": (compared, {"until_decided": 0.05, "bounds": (-20, 40), "max_trajectories": 30}),
    "a decision on successes": (compared, {"until_decided": 0.05, "decide_on": "success", "max_trajectories": 12}),
}  # fmt: skip
ALIKE = {"a guarantee", "a precision through seeds", "a decision on successes", "lanes", "seeds"}  # as others are
AMOUNTS = ("n_trajectories", "seeds", "scenarios", "until_halfwidth", "until_decided", "precision_of", "decide_on",
           "guarantee", "max_trajectories")  # fmt: skip


def without_amounts(options):
    """Return options without those that a file knows."""
    return {name: value for name, value in options.items() if name not in (*AMOUNTS, "bounds", "part", "seed")}


@pytest.mark.parametrize(
    ("run", "shares"),
    mostly_slow(
        [
            *(pytest.param(run, (0.5,), marks=SLOW if run in ALIKE else ()) for run in RUNS),
            *(pytest.param(run, (0, 1), marks=SLOW) for run in RUNS),
        ],
        3,
    ),
)
def test_an_interrupted_run_goes_on_to_the_bytes_of_one_run(tmp_path, monkeypatch, run, shares):
    make, options = RUNS[run]
    whole = make(**options, out=tmp_path / "whole.json")
    n_rows = sum(map(len, whole.evaluations))
    for n in (1 + round(share * (n_rows - 2)) for share in shares):
        path = tmp_path / f"{n}.json"
        with monkeypatch.context() as patch:
            stopping(patch, n, KeyboardInterrupt)
            with pytest.raises(KeyboardInterrupt) as caught:
                make(**options, out=path)
        journal = tmp_path / f"{n}.partial.json"
        assert (path.exists(), journal.exists()) == (False, True)
        if isinstance(caught.value, EvaluationInterruptedError):  # as the command does; else it is that of a comparison
            caught.value.found.save(path)
            journal.rename(tmp_path / f"{n}-journal.json")
            assert make(**without_amounts(options), resume=tmp_path / f"{n}-journal.json") == whole
        assert make(**without_amounts(options), resume=path) == whole
        assert path.read_bytes() == (tmp_path / "whole.json").read_bytes()
        assert not journal.exists()


def journal_of(make, options, path, monkeypatch):
    """Return what a run found, and the whole journal that it had before it ended."""
    with monkeypatch.context() as patch:
        patch.setattr(RunFile, "_remove_journal", lambda _: None)
        found = make(**options, out=path)
    path.unlink()
    return found, (path.parent / f"{path.stem}.partial.json").read_bytes()


@pytest.mark.parametrize(
    ("run", "every"),
    [("left out", 5), ("comparison", 16), *(pytest.param(run, 1, marks=SLOW) for run in RUNS)],
)
def test_a_run_killed_at_any_byte_of_its_journal_goes_on_to_the_bytes_of_one_run(tmp_path, monkeypatch, run, every):
    make, options = RUNS[run]
    path, journal = tmp_path / "x.json", tmp_path / "x.partial.json"
    found, data = journal_of(make, options, path, monkeypatch)
    ends = [position + 1 for position, byte in enumerate(data) if byte == ord("\n")]
    # What comes before the first trajectory appears with it.
    ends = ends[next(n for n, line in enumerate(data.split(b"\n")) if line.startswith(b"[")) :]
    n_rows = [
        sum(len(each["indices"]) for each in read_journal(journal_lines(data[:position]) or []).evaluations.values())
        for position in [*range(ends[0], len(data), every), len(data)]
    ]
    assert (n_rows[0], n_rows[-1], n_rows) == (1, sum(map(len, found.evaluations)), sorted(n_rows))
    middle = [(one + other) // 2 for one, other in itertools.pairwise(ends)]
    for position in [*ends[::every], *middle[:: 2 * every], len(data) - 1, len(data)]:
        journal.write_bytes(data[:position])
        assert make(**without_amounts(options), resume=path) == found
        assert (path.read_text(), journal.exists()) == (found.to_json(), False)
        path.unlink()


@pytest.mark.parametrize(
    ("before", "options"),
    mostly_slow(
        [
            ({"n_trajectories": 9}, {"n_trajectories": N}),
            ({"seeds": SEEDS[:9]}, {"seeds": SEEDS}),
            ({"seeds": SEEDS[:9], "env": FAILS, "on_failure": "drop"}, {"seeds": SEEDS}),
            ({"seeds": SEEDS[:4], "env": FAILS, "on_failure": "drop"}, {"seeds": SEEDS}),
            ({"scenarios": SCENARIOS[:9], "seed": None}, {"scenarios": SCENARIOS}),
            ({"n_trajectories": 3, "env": BRITTLE, "on_failure": "drop"}, {"n_trajectories": 38}),
            pytest.param({"until_halfwidth": 0.8}, {"until_halfwidth": 0.5}, marks=SLOW),
            ({"until_halfwidth": 0.8, "max_trajectories": 31}, {"until_halfwidth": 0.5}),
            pytest.param({"n_trajectories": 9}, {"until_halfwidth": 0.8}, marks=SLOW),
            pytest.param({"until_halfwidth": 0.8}, {"n_trajectories": 60}, marks=SLOW),
            ({**VEC, "n_trajectories": 9, "worker_args": {"n_envs": 2, "block_size": 6}}, {"n_trajectories": N}),
        ],
        2,
    ),
)
def test_a_finished_one_goes_on_with_more(tmp_path, before, options):
    shared = {name: value for name, value in before.items() if name not in AMOUNTS}
    whole = evaluated(**{**shared, **options}, out=tmp_path / "whole.json")
    part = evaluated(**before, out=tmp_path / "x.json")
    assert len(part) < len(whole)
    for target in ("other.json", None):
        there = (tmp_path / "x.json").read_bytes()
        out = {} if target is None else {"out": tmp_path / target}
        seed = {"seed": 3} if target is None and "n_trajectories" in options else {}
        assert evaluated(**without_amounts(shared), **options, **out, **seed, resume=tmp_path / "x.json") == whole
        assert (tmp_path / (target or "x.json")).read_bytes() == (tmp_path / "whole.json").read_bytes()
        assert target is None or (tmp_path / "x.json").read_bytes() == there
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other.json", "whole.json", "x.json"]


class Counted(Known):
    """Writes the seed of each reset into a file."""

    def __init__(self, path, fails=()):
        super().__init__(fails=fails)
        self.path = path

    def reset(self, *, seed=None, options=None):
        with open(self.path, "a") as file:
            file.write(f"{seed}\n")
        return super().reset(seed=seed, options=options)


def test_trajectories_that_are_there_are_not_run_again(tmp_path):
    env = functools.partial(Counted, tmp_path / "resets", fails=(SEEDS[3], SEEDS[9], SEEDS[22]))
    options: dict[str, Any] = {"env": env, "on_failure": "drop", "check": None}
    for n in (15, 22, 23, None):
        amount = {} if n is None else {"seeds": SEEDS[:n]}
        evaluated(**options, **amount, **({"out": tmp_path / "x.json"} if n == 15 else {"resume": tmp_path / "x.json"}))
    assert list(map(int, (tmp_path / "resets").read_text().split())) == SEEDS
    assert (tmp_path / "x.json").read_text() == evaluated(**options, seeds=SEEDS).to_json()


def test_a_run_that_goes_on_is_killed_again_and_loses_nothing(tmp_path, monkeypatch):
    whole = compared(n_trajectories=N)
    path, journal = tmp_path / "x.json", tmp_path / "x.partial.json"
    compared(n_trajectories=7, out=path)
    for n, first in ((4, 7), (9, 7), (20, 9)):  # the trajectories that are there are taken, too
        with monkeypatch.context() as patch:
            stopping(patch, n, Stopped)
            with pytest.raises(Stopped):
                compared(resume=path, n_trajectories=N)
        saved = Comparison.load(journal if journal.exists() else path)
        assert list(map(len, saved.evaluations)) == [max(first, n), 7, 7]
    with monkeypatch.context() as patch:
        stopping(patch, 15, KeyboardInterrupt)
        with pytest.raises(EvaluationInterruptedError) as caught:
            compared(resume=path, n_trajectories=N)
    assert list(map(len, caught.value.found.evaluations)) == [20, 7, 7]
    assert compared(resume=path) == whole  # as many as the journal was asked for
    assert (path.read_text(), journal.exists()) == (whole.to_json(), False)


def test_the_file_and_its_journal_are_both_there_for_a_moment(tmp_path, monkeypatch):
    def stop(*_):
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(RunFile, "_remove_journal", stop)
        with pytest.raises(Stopped):
            evaluated(n_trajectories=N, out=tmp_path / "x.json")
    whole = (tmp_path / "x.json").read_bytes()
    assert (tmp_path / "x.partial.json").exists()
    evaluated(resume=tmp_path / "x.partial.json")
    assert ((tmp_path / "x.json").read_bytes(), len(list(tmp_path.iterdir()))) == (whole, 1)


KILLED = """
import os, signal, sys
from streamsampler import evaluate
from tests.evaluation.envs import Known, zero

class Deadly(Known):
    def reset(self, *, seed=None, options=None):
        if seed == {seed}:
            os.kill({pid}, signal.SIGKILL)
        return super().reset(seed=seed, options=options)

Deadly.__qualname__ = "Known"
if __name__ == "__main__":
    evaluate(zero, Deadly, seeds=range(400), n_workers={n_workers}, out=sys.argv[1], check=None)
"""


@pytest.mark.parametrize("n_workers", [0, pytest.param(2, marks=SLOW)])
def test_a_process_that_is_killed_keeps_what_was_finished(tmp_path, n_workers):
    path = tmp_path / "x.json"
    pid = "os.getpid()" if n_workers == 0 else "int(open(sys.argv[1] + '.pid').read())"
    text = KILLED.format(seed=300, pid=pid.replace("sys.argv[1]", repr(str(path))), n_workers=n_workers)
    (tmp_path / "killed.py").write_text(text)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[2]), str(tmp_path)])}
    process = subprocess.Popen([sys.executable, tmp_path / "killed.py", path], env=environ)
    Path(f"{path}.pid").write_text(str(process.pid))
    assert process.wait() == -signal.SIGKILL
    if n_workers == 0:  # otherwise workers may be there before the first trajectory is taken
        assert 1 <= len(Evaluation.load(tmp_path / "x.partial.json")) <= 300
    found = evaluated(env=Known, seeds=range(400), resume=path, check=None)
    assert path.read_text() == evaluated(env=Known, seeds=range(400), check=None).to_json() == found.to_json()


def test_other_kernels_are_a_warning(tmp_path, caplog):
    path = tmp_path / "x.json"
    own = evaluated(n_trajectories=9, out=path).settings["fingerprints"]
    path.write_text(path.read_text().replace(own[0], "numpy=0123456789ab"))
    found = evaluated(n_trajectories=9, resume=path)
    assert (found.settings["fingerprints"], caplog.text) == (["numpy=0123456789ab"], "")
    found = evaluated(n_trajectories=N, resume=path)
    assert found.settings["fingerprints"] == sorted([*own, "numpy=0123456789ab"])
    assert (
        "the trajectories were sampled where numpy computes with other kernels, so that a single run may" in caplog.text
    )
    assert f"numpy=0123456789ab in {path}; {own[0]} in this run" in caplog.text


def test_blocks_that_get_longer_do_not_go_on(tmp_path):
    """Which trajectories are stepped together depends on where the call begins."""
    env = functools.partial(gymnasium.make_vec, "CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point")
    options: dict[str, Any] = {"agent": "random", "env": env, "worker_class": VecWorker}
    evaluated(n_trajectories=40, out=tmp_path / "x.json", **options)
    with pytest.raises(UsageError, match="parts and resume are not supported, for a vector environment"):
        evaluated(n_trajectories=80, resume=tmp_path / "x.json", **options)


def test_what_is_of_another_run_is_refused_with_both_values(tmp_path):
    path = tmp_path / "x.json"
    evaluated(n_trajectories=9, out=path)
    evaluated(seeds=SEEDS[:9], out=tmp_path / "seeds.json")
    evaluated(scenarios=SCENARIOS[:9], seed=None, out=tmp_path / "scenarios.json")
    evaluated(n_trajectories=9, part=(1, 2), out=tmp_path / "part.json")
    compared(n_trajectories=9, out=tmp_path / "compared.json")
    with LocalSampler("random", "CartPole-v1", seed=1) as sampler:
        sampler.obtain_trajectories(1).save(tmp_path / "x.npz")
    (tmp_path / "other.json").write_text("{}")
    (tmp_path / "text.json").write_text("hello\n")
    versions = path.read_text().replace(f'"gymnasium": "{gymnasium.__version__}"', '"gymnasium": "0.1"')
    (tmp_path / "versions.json").write_text(versions)
    holes = path.read_text().replace('"indices": [\n  0,\n  1,', '"indices": [\n  1,\n  0,')
    (tmp_path / "holes.json").write_text(holes)
    (tmp_path / "cut.json").write_bytes(path.read_bytes()[:-20])
    levels = [{**each, "options": {"level": n + 1}} for n, each in enumerate(SCENARIOS)]
    names = [{**each, "name": f"t{n}"} for n, each in enumerate(SCENARIOS)]
    refused: list[tuple[str, dict[str, Any], str]] = [
        ("x", {"seed": 4}, "x.json is of another run: seed is 3 in .*x.json, and 4 here"),
        ("x", {"agent": Better()}, "the agent's name is 'zero' in .*x.json, and 'Better' here"),
        ("x", {"env": "CartPole-v1"}, "environment is 'Known' in .*x.json, and 'CartPole-v1' here"),
        ("x", {"max_episode_length": 2}, "max_episode_length is None in .*x.json, and 2 here"),
        ("x", {"success": "once"}, "success is 'end' in .*x.json, and 'once' here"),
        ("x", {"worker_threads": 2, "on_failure": "drop"}, "on_failure is 'raise' .*; worker_threads is 1 in"),
        ("x", {"part": (1, 3)}, r"part is None in .*x.json, and 'part 1 of 3 of 30 trajectories' here"),
        ("part", {"n_trajectories": 30}, "part is 'part 1 of 2 of 9 trajectories' in .*, and 'part 1 of 2 of 30"),
        ("x", {"n_trajectories": 8}, "x.json has 9 trajectories, and only 8 are requested"),
        ("x", {"seeds": range(30)}, "have seeds derived from the sampler's seed 3: give the number"),
        ("seeds", {"n_trajectories": 30}, "seeds.json have given seeds: give seeds"),
        ("seeds", {"seeds": SEEDS[:8]}, "seeds.json has 9 trajectories, and only 8 are requested"),
        ("seeds", {"seeds": [*SEEDS[:8], 99]}, f"the seed of trajectory 8 is {SEEDS[8]} in .*, and 99 here"),
        ("seeds", {"scenarios": SCENARIOS}, "names of scenarios is False in .*, and True here; options of scenarios"),
        ("scenarios", {"scenarios": levels}, "options of scenarios is .* in .*scenarios.json, and .* here"),
        ("scenarios", {"scenarios": names}, "the scenario of trajectory 0 is 's0' in .*, and 't0' here"),
        ("versions", {"n_trajectories": 30}, f"the version of gymnasium is '0.1' in .*, and '{gymnasium.__version__}'"),
    ]  # fmt: skip
    for name, options, words in refused:
        amounts = {} if set(AMOUNTS) & options.keys() else {"n_trajectories": 30}
        with pytest.raises(UsageError, match=words):
            evaluated(resume=tmp_path / f"{name}.json", **{**amounts, **options})
    broken: list[tuple[str, type[Exception], str]] = [
        ("compared.json", StorageError, "compared.json holds a comparison, and no evaluation to resume"),
        ("other.json", StorageError, "other.json is no evaluation of streamsampler: it holds"),
        ("text.json", StorageError, "text.json is no evaluation of streamsampler: it is not JSON"),
        ("cut.json", StorageError, "cut.json is no evaluation of streamsampler: it is not JSON"),
        ("holes.json", StorageError, "holes.json is damaged: the indices of its trajectories do not match"),
        ("x.npz", UsageError, "x.npz': the evaluation is written as JSON"),
        ("nowhere/x.json", UsageError, "no such directory"),
    ]
    for name, error, words in broken:
        with pytest.raises(error, match=words):
            evaluated(resume=tmp_path / name, n_trajectories=30)
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(StorageError, match=r"is a folder, not a regular file"):
        evaluated(resume=tmp_path / "folder.json", n_trajectories=30)
    with pytest.raises(UsageError, match=r"there is neither .*none.json nor .*none.partial.json to resume"):
        evaluated(resume=tmp_path / "none.json")
    with LocalSampler(zero, SUCCEEDS) as sampler, pytest.raises(UsageError, match="leave out sampler, and give agent"):
        evaluate(sampler=sampler, n_trajectories=30, resume=path)
    agents: Any = {"zero": zero, "other": Better()}
    with pytest.raises(UsageError, match=r"the agents are zero, Better, .* in .*compared.json, and zero, other here"):
        compare(agents, SUCCEEDS, n_workers=0, resume=tmp_path / "compared.json", n_trajectories=30)
    with pytest.raises(UsageError, match="holds the evaluation of a single agent, which is complete"):
        compared(resume=path, n_trajectories=30)
    narrow = evaluated(until_halfwidth=0.5, out=tmp_path / "narrow.json")
    with pytest.raises(UsageError, match=rf"narrow.json has {len(narrow)} trajectories, and \d+ are enough"):
        evaluated(until_halfwidth=0.9, resume=tmp_path / "narrow.json")
