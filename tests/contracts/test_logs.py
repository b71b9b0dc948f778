"""What user code in workers logs is handled in the sampler's process, once."""

import logging
import os
import pickle
import signal
import subprocess
import sys
from typing import Any

import pytest

from streamsampler import LocalSampler, MultiprocessingSampler, VecWorker
from streamsampler.errors import RolloutError, WorkerDiedError
from tests.patience import closing_patiently
from tests.scripted.agents import always_zero
from tests.scripted.envs import Steps

LOG = logging.getLogger("tests.an_environment")
SIDE_BY_SIDE: dict[str, Any] = {"worker_class": VecWorker, "worker_args": {"n_envs": 2}}


class Telling(Steps):
    """Logs each reset, and its own end."""

    def __init__(self, level=logging.WARNING):
        super().__init__()
        self.level = level

    def reset(self, *, seed=None, options=None):
        LOG.log(self.level, "reset %d", 0, extra={"process_id": os.getpid()})
        return super().reset(seed=seed)

    def close(self):
        LOG.log(self.level, "closed")


class Failing(Telling):
    """Logs, and raises or dies in the first step."""

    def __init__(self, dies):
        super().__init__()
        self.dies = dies

    def step(self, action):
        LOG.error("about to fail", exc_info=ValueError("why"))
        if self.dies:
            os._exit(3)
        raise RuntimeError("failed")


def messages(caplog):
    return [record.getMessage() for record in caplog.records if record.name == LOG.name]


@pytest.mark.parametrize(
    ("start_method", "options"),
    [
        (None, {}),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in ((None, SIDE_BY_SIDE), ("fork", {}), ("spawn", SIDE_BY_SIDE))
        ),
    ],
)
def test_each_record_is_handled_once_with_the_number_of_its_worker(start_method, options, caplog, tmp_path, capfd):
    handler = logging.FileHandler(tmp_path / "log")  # which a forked worker has, too
    handler.setFormatter(logging.Formatter("%(name)s from worker %(worker)s: %(message)s"))
    LOG.addHandler(handler)
    envs = [Telling] * 2  # each worker has its own: none runs the trajectories of both
    given = closing_patiently({"n_workers": 2, "start_method": start_method, **options})
    try:
        with MultiprocessingSampler(always_zero, envs, **given) as sampler:
            sampler.obtain_exact_trajectories(3)
            pids = sampler.worker_pids()
            during = len(messages(caplog))
    finally:
        LOG.removeHandler(handler)
        handler.close()
    records = [record for record in caplog.records if record.name == LOG.name]
    resets = [record for record in records if record.getMessage() == "reset 0"]
    assert len(resets) >= during >= 6
    assert {record.worker for record in resets} == {0, 1}
    assert all(record.process_id == record.process == pids[record.worker] for record in resets)
    assert messages(caplog).count("closed") == (4 if options else 2)
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines == [f"{LOG.name} from worker {record.worker}: {record.getMessage()}" for record in records]
    assert "reset" not in capfd.readouterr().err


@pytest.mark.slow
def test_levels_are_the_parents_and_may_change_between_calls(caplog):
    with MultiprocessingSampler(always_zero, Telling(logging.INFO), n_workers=1) as sampler:
        sampler.obtain_trajectories(1)
        assert messages(caplog) == []
        with caplog.at_level(logging.INFO, LOG.name):
            sampler.obtain_trajectories(1)
            assert len(messages(caplog)) >= 1
            with pickle.loads(pickle.dumps(sampler)) as other:
                caplog.clear()
                other.obtain_trajectories(1)
                assert "reset 0" in messages(caplog), "a sampler that was pickled"
            os.kill(sampler.worker_pids()[0], signal.SIGKILL)
            caplog.clear()
            sampler.obtain_trajectories(1)
            assert "reset 0" in messages(caplog), "a worker that takes another's place"
            caplog.clear()
            logging.disable(logging.INFO)
            try:
                sampler.obtain_trajectories(1)
            finally:
                logging.disable(logging.NOTSET)
        sampler.obtain_trajectories(1)
        assert messages(caplog) == [], "the level is what it was"


@pytest.mark.parametrize("dies", [False, True])
def test_records_come_with_the_failure_that_follows_them(caplog, dies):
    """Those of a worker that dies before its answer are lost."""
    # Without the check, whose time may be up between a reset and a step, so that records of both come twice, or not.
    sampler = MultiprocessingSampler(always_zero, Failing(dies), n_workers=1, max_restarts=0, check=None)
    with sampler, pytest.raises(WorkerDiedError if dies else RolloutError):
        sampler.obtain_trajectories(1)
    assert messages(caplog)[:2] == ([] if dies else ["reset 0", "about to fail"])
    assert ("ValueError: why" in caplog.text) != dies


def test_in_this_process_records_are_handled_directly(caplog):
    with LocalSampler(always_zero, Telling, check=None) as sampler:
        sampler.obtain_trajectories(2)
    assert messages(caplog) == ["reset 0", "reset 0", "closed"]


CARELESS = """
import logging
from streamsampler.testing import ScriptedEnv

logging.basicConfig(level=logging.DEBUG, format="written by %(process)d: %(message)s")
log = logging.getLogger("careless")
log.setLevel(logging.ERROR)


class Careless(ScriptedEnv):
    def reset(self, **kwargs):
        log.info("in between")
        return super().reset(**kwargs)
"""

SCRIPT = """
import logging
import os

import careless
from streamsampler import MultiprocessingSampler

logging.getLogger("careless").setLevel(logging.INFO)
print(os.getpid())
with MultiprocessingSampler(lambda observation: 0, careless.Careless, n_workers=1) as sampler:
    sampler.obtain_trajectories(1)
"""


@pytest.mark.slow
def test_a_module_that_sets_up_logging_when_workers_import_it_has_no_say_there(tmp_path):
    (tmp_path / "careless.py").write_text(CARELESS)
    (tmp_path / "script.py").write_text(SCRIPT)
    run = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True)
    # By the script's handler, though in the worker's words: its process id is the record's.
    (line,) = set(run.stderr.splitlines())
    assert line.startswith("written by ")
    assert line.endswith(": in between")
    assert f"written by {run.stdout.strip()}:" not in line
