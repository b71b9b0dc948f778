"""A parent that is gone while its processes still start: they end at once, whatever they are importing."""

import os
import signal
import subprocess
import sys

import pytest

from tests.faults.test_ends import gone_within

# Python imports `sitecustomize` before anything else. What is started here says so, and imports no further.
SLOW_TO_START = """
import os, time
with open(os.environ["STARTED"], "w") as started:
    started.write(f"{os.getpid()}\\n")
time.sleep(1000)
"""

PROGRAM = """
import os, sys
os.environ["PYTHONPATH"] = sys.argv[2]
from streamsampler import MultiprocessingSampler
from streamsampler.testing import ScriptedAgent, ScriptedEnv

MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1, start_method=sys.argv[1])
"""

SPAWNED_LATER = """
import os, sys
from streamsampler import MultiprocessingSampler
from streamsampler.testing import ScriptedAgent, ScriptedEnv

MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1, start_method=sys.argv[1]).close()
os.environ["PYTHONPATH"] = sys.argv[2]
sampler = MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1, start_method=sys.argv[1])
sampler.obtain_trajectories(1)
"""


@pytest.mark.parametrize(
    ("method", "program"),
    [("forkserver", PROGRAM), ("spawn", SPAWNED_LATER)],
    ids=["the fork server", "a spawned worker"],
)
def test_orphans_in_start_up(tmp_path, method, program):
    """They notice it before their imports, not after."""
    (tmp_path / "sitecustomize.py").write_text(SLOW_TO_START)
    os.mkfifo(tmp_path / "started")
    started = os.open(tmp_path / "started", os.O_RDWR)
    command = [sys.executable, "-c", program, method, str(tmp_path)]
    with subprocess.Popen(command, env={**os.environ, "STARTED": str(tmp_path / "started")}) as process:
        starting = int(os.read(started, 100))
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert gone_within([starting], 1)
    os.close(started)
