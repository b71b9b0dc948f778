"""What holds where the calls that only Linux has are missing, as on macOS."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.child_processes import Run, notes, processes
from tests.faults.conftest import slow
from tests.faults.test_ends import gone

FOLDER = Path(__file__).parent.parent / "without_linux"
CORE = [
    *(
        f"tests/contracts/test_{name}.py"
        for name in ("c1_reproducible", "c2_unbiased", "c3_on_policy", "c9_exact_data")
    ),
    *(f"tests/faults/test_{name}.py" for name in ("exceptions", "policies", "stragglers")),
]


@pytest.fixture(autouse=True)
def without_linux(monkeypatch):
    """All Python processes that are started lack the calls; this one has them, to look at those."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(FOLDER), os.getcwd())))


def test_the_calls_are_missing_in_workers_too():
    code = "import os, fcntl; print(*(hasattr(*item) for item in ((os, 'memfd_create'), (fcntl, 'F_SETSIG'))))"
    assert subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True).stdout == "False False\n"


@pytest.mark.slow
def test_the_core_of_the_default_tier():
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *CORE]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-5000:]


STUCK = """
import sys, threading
from streamsampler import MultiprocessingSampler
from streamsampler.testing import Fault, Faults, ScriptedAgent, ScriptedEnv
from tests.faults.child_processes import StartsProcesses
from functools import partial

folder, method = sys.argv[1:]
faults = Faults(folder + "/faults", Fault("hang_gil", times=2))
envs = faults.env(partial(StartsProcesses, folder, "in_group,stopped"))
sampler = MultiprocessingSampler(ScriptedAgent(), envs, n_workers=2, start_method=method)
threading.Thread(target=lambda: (faults.wait(2, 120), print("stuck", flush=True)), daemon=True).start()
sampler.obtain_trajectories(4)
"""


@pytest.mark.parametrize("method", ["spawn", slow("fork"), slow("forkserver")])
@pytest.mark.slow
def test_the_parent_is_killed_while_workers_are_stuck_in_native_code(tmp_path, method):
    """The kernel does not kill them: their watchdogs do, and end what is in their groups."""
    with Run(tmp_path, [sys.executable, "-c", STUCK, str(tmp_path), method]) as run:
        assert run.process.stdout.readline() == "stuck\n"
        left = processes(tmp_path)
        assert len(left) == 4
        run.process.kill()
        run.wait()
        assert gone([*notes(tmp_path), *left])
