"""The journal of a run: what its lines say, who may write it, and what becomes of it."""

import contextlib
import functools
import io
import json
import math
import os
from pathlib import Path
from typing import Any

import pytest

from streamsampler import LocalSampler, evaluate, merge
from streamsampler.errors import RolloutError, StorageError, UsageError
from streamsampler.evaluation.agents import Row
from streamsampler.evaluation.comparison import Comparison
from streamsampler.evaluation.evaluation import Evaluation
from streamsampler.evaluation.journal import Journal, JournalEntry, journal_beside, whole_of
from streamsampler.evaluation.run_file import save_interrupted
from tests.evaluation.envs import Known, zero

VALUES: dict[str, Any] = {
    "agent": {"name": "zero"}, "environment": "Known", "settings": {"max_episode_length": None}, "versions": {},
    "seed": 3, "success_meaning": "end", "guaranteed": None, "bounds": None, "part": None, "failures": (),
    "anomalies": 0, "first_anomaly": None,
}  # fmt: skip
NOTES = {"failures": ("trajectory 2, stepping",), "anomalies": 4, "first_anomaly": "reward 1 is nan"}
FAILS = functools.partial(Known, fails=(4,))


def row(index, value=1.0, success=None):
    return Row(index, 100 + index, value, length=3, terminated=True, truncated=False, success=success)


@contextlib.contextmanager
def begun(path, *indices):
    """Begin a journal with some trajectories; it is closed at the end, and stays."""
    journal = Journal(path, "evaluation", {"asked": {"n_trajectories": 9}})
    entry = JournalEntry(journal, 0)
    entry.begin(VALUES)
    with contextlib.closing(journal):
        for index in indices:
            entry.add(row(index), None)
        yield journal, entry


def test_a_journal_is_an_interrupted_evaluation(tmp_path):
    path = tmp_path / "x.partial.json"
    with begun(path, 0, 1) as (_, entry):
        entry.describe(NOTES)
        entry.describe_fingerprints(["numpy=1"])
        assert (Evaluation.load(path).failures, Evaluation.load(path).left_out) == ((), 0)  # not before the next one
        entry.describe_fingerprints(["numpy=1"])
        entry.add(row(3, math.inf, success=True), None)
    found = Evaluation.load(path)
    assert (found.stopped, found.asked, found.left_out) == ("interrupted", {"n_trajectories": 9}, 1)
    assert (found.failures, found.anomalies, found.first_anomaly) == tuple(NOTES.values())
    assert found.settings == {"max_episode_length": None, "fingerprints": ["numpy=1"]}
    assert (found.indices.tolist(), found.seeds) == ([0, 1, 3], (100, 101, 103))
    assert found.returns.tolist() == [1, 1, math.inf]
    assert found.successes.tolist() == [False, False, True]
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert sum(isinstance(line, dict) for line in lines) == 4
    assert lines[2] == [0, 0, 100, 1.0, 3, True, False, None]
    assert found.rows == [row(0, success=False), row(1, success=False), row(3, math.inf, success=True)]


def test_there_is_no_file_before_the_first_trajectory(tmp_path):
    with begun(tmp_path / "x.json") as (journal, entry):
        assert (journal.is_open, list(tmp_path.iterdir())) == (False, [])
        entry.add(row(0), None)
        assert journal.is_open
        journal.close()
    with pytest.raises(RolloutError, match="seed 4 fails") as caught:
        evaluate(zero, FAILS, seeds=[4, 5], n_workers=0, out=tmp_path / "y.json")
    assert (getattr(caught.value, "__notes__", []), len(list(tmp_path.iterdir()))) == ([], 1)


def test_an_error_says_where_what_is_finished_is(tmp_path):
    with pytest.raises(RolloutError, match="seed 4 fails") as caught:
        evaluate(zero, FAILS, seeds=range(9), n_workers=0, out=tmp_path / "x.json")
    assert caught.value.__notes__ == [
        f'4 trajectories are in {tmp_path / "x.partial.json"}: resume="{tmp_path / "x.json"}" resumes them'
    ]
    with pytest.raises(UsageError, match=r"x.partial.json has 4 trajectories of an earlier run: resume it with"):
        evaluate(zero, FAILS, seeds=range(4), n_workers=0, out=tmp_path / "x.json")
    whole = evaluate(zero, FAILS, seeds=range(4), n_workers=0, resume=tmp_path / "x.json", out=tmp_path / "y.json")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.partial.json", "y.json"]
    assert evaluate(zero, FAILS, seeds=range(4), n_workers=0, resume=tmp_path / "x.json") == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.json", "y.json"]
    with pytest.raises(UsageError, match=r"x.json is no part: it holds all trajectories of a run"):
        merge([tmp_path / "x.json"], tmp_path / "z.json")


@pytest.mark.parametrize("also", ["out", "resume"])
def test_two_runs_do_not_write_one_file(tmp_path, also):
    path = tmp_path / "x.partial.json"
    with begun(path, 0):
        with pytest.raises(StorageError, match=r"x.partial.json is being written by another process"):
            evaluate(zero, Known, n_trajectories=9, n_workers=0, **{also: tmp_path / "x.json"})
        with pytest.raises(StorageError, match="is being written"), begun(path, 0):  # both began without a file
            pass
    with begun(path, 0):
        pass


def test_a_full_disk_ends_the_run_and_keeps_what_was_written(tmp_path, monkeypatch):
    path = tmp_path / "x.partial.json"

    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(data[:5])

    with begun(path, 0, 1) as (journal, entry):
        journal._file.close()
        monkeypatch.setattr(journal, "_file", Full(path, "a"))
        with pytest.raises(OSError, match=r"No space left on device: .*x.partial.json"):
            entry.add(row(2), None)
    assert len(Evaluation.load(path)) == 2


def test_a_journal_that_was_changed_is_refused(tmp_path):
    path = tmp_path / "x.partial.json"
    with begun(path, 0, 1):
        pass
    data = path.read_bytes()
    wrong = [
        (data + b"{}\n", "'evaluation' is missing"),
        (data + b"[0, 1]\n", r"line 5 is b'\[0, 1\]'"),
        (data + b"[1, 2, 102, 1.0, 3, true, false, null]\n", "line 5 is"),
        (data + b"nothing\n", "is no evaluation of streamsampler"),
        (data + b"[0, 2, 102, \"much\", 3, true, false, null]\n", "is no evaluation of streamsampler"),
        (data.replace(b'"asked": {"n_trajectories": 9}', b'"other": 1'), "'asked' is missing"),
        (data.replace(b'"format_version": 1', b'"format_version": 9'), "has format version 9"),
        (data.splitlines(keepends=True)[0], "no trajectory was finished"),
    ]  # fmt: skip
    for changed, words in wrong:
        path.write_bytes(changed)
        with pytest.raises(StorageError, match=words):
            Evaluation.load(path)
    with pytest.raises(StorageError, match="is no comparison"):
        Comparison.load(path)
    os.mkfifo(tmp_path / "pipe.json")
    with pytest.raises(StorageError, match=r"pipe.json is a named pipe, not a regular file"):
        evaluate(zero, Known, n_trajectories=9, n_workers=0, resume=tmp_path / "pipe.json")


def test_what_cannot_be_json_is_an_error_of_the_first_trajectory(tmp_path):
    entry = JournalEntry(Journal(tmp_path / "x.json", "evaluation", {"asked": {}}), 0)
    with pytest.raises(StorageError, match="the evaluation's agent or settings cannot be written as JSON"):
        entry.begin({**VALUES, "agent": {"name": zero}})


def test_names():
    assert journal_beside(Path("a/x.json")) == Path("a/x.partial.json")
    assert journal_beside(Path("x")) == Path("x.partial")
    assert [whole_of(Path(name)) for name in ("a/x.partial.json", "x.json")] == [Path("a/x.json"), Path("x.json")]


def test_an_interrupted_one_replaces_no_file(tmp_path):
    found = evaluate(zero, Known, n_trajectories=9, n_workers=0)
    path, journal = tmp_path / "x.json", tmp_path / "x.partial.json"
    with begun(journal, 0):
        pass
    assert save_interrupted(found, path) == path
    assert not journal.exists()
    path.write_text("before")
    assert save_interrupted(found, path) == journal
    assert (path.read_text(), Evaluation.load(journal)) == ("before", found)


def test_a_sampler_that_is_there_writes_a_file_too(tmp_path):
    with LocalSampler(zero, Known, seed=3) as sampler:
        found = evaluate(sampler=sampler, n_trajectories=9, out=tmp_path / "x.json")
    assert (found, [tmp_path / "x.json"]) == (Evaluation.load(tmp_path / "x.json"), list(tmp_path.iterdir()))
    for name, words in (("x.npz", "is written as JSON"), ("no/x.json", "no such directory")):
        with pytest.raises(UsageError, match=words):
            evaluate(zero, Known, n_trajectories=9, n_workers=0, out=tmp_path / name)
