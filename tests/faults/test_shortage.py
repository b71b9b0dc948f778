"""No memory, no shared memory, no descriptors: an error that says so, and nothing half done."""

import functools
import os
import subprocess
import sys
import textwrap

import pytest

from streamsampler import MultiprocessingSampler
from streamsampler.errors import RolloutError
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.faults.hungry import Hungry
from tests.faults.undisturbed import SEED, undisturbed


def run_script(tmp_path, text, *command):
    """Run a script, in a process that may lack things; return what it printed."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [*command, sys.executable, script], env=environment, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("shape", "wanted"), [((2,), 1 << 30), ((1_000_000,), 0)], ids=["in the environment", "in the recording"]
)
def test_out_of_memory(shape, wanted):
    with MultiprocessingSampler(
        ScriptedAgent(), functools.partial(Hungry, shape, wanted), n_workers=1, seed=SEED
    ) as it:
        with pytest.raises(RolloutError) as caught:
            it.obtain_trajectories(2)
        assert isinstance(caught.value.original, MemoryError | OSError)
        assert "emory" in str(caught.value)
        assert it.stats.restarts == 0
        batch = it.obtain_trajectories(8, agent_update={"offset": 1}, env_update=ScriptedEnv)
        assert batch == undisturbed(2)[1]


FULL_SHARED_MEMORY = """
import functools, os
from streamsampler import MultiprocessingSampler, LocalSampler
from streamsampler.testing import ScriptedAgent, ScriptedEnv

with open("/dev/shm/filler", "wb", buffering=0) as filler:
    try:
        while filler.write(bytes(4096)):
            pass
    except OSError as error:
        print(error.errno)
env = functools.partial(ScriptedEnv, shape=(20_000,))
with MultiprocessingSampler(ScriptedAgent(), env, n_workers=2, seed=1) as sampler:
    batch = sampler.obtain_trajectories(20)
with LocalSampler(ScriptedAgent(), env, seed=1) as local:
    print(batch == local.obtain_trajectories(20), *os.listdir("/dev/shm"))
"""


def may_have_namespaces():
    return subprocess.run(["unshare", "-rm", "true"], capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not may_have_namespaces(), reason="this user may not have mounts of his own (unshare -rm)")
def test_full_shared_memory_does_not_matter(tmp_path):
    mount = 'mount -t tmpfs -o size=64k none /dev/shm && exec "$0" "$@"'
    printed = run_script(tmp_path, FULL_SHARED_MEMORY, "unshare", "-rm", "sh", "-c", mount)
    assert printed == ["28", "True", "filler"]


METHODS = ["forkserver", "spawn"]
FEW_DESCRIPTORS = """
import errno, itertools, os, resource
from streamsampler import MultiprocessingSampler
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.contracts.conftest import descendants

def make():
    return MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=3, seed=1, start_method={method!r})

def left():
    return descendants(), len(os.listdir("/proc/self/fd"))

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
make().close()  # the fork server stays, once there is one
before = left()
made = False
for limit in itertools.count(before[1]):
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, most))
    try:
        make().close()
    except OSError as error:
        assert error.errno == errno.EMFILE, error
    else:
        made = True
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    assert left() == before, (limit, before, left())
    if made:
        break
with make() as sampler:
    assert sampler.obtain_trajectories(4).n_trajectories == 4
print(limit - before[1])
"""


@pytest.mark.parametrize(
    "method", ["fork", *(pytest.param(m, marks=pytest.mark.slow) for m in ("forkserver", "spawn"))]
)
def test_no_half_built_sampler_when_descriptors_run_out(tmp_path, method):
    (n_failures,) = run_script(tmp_path, FEW_DESCRIPTORS.format(method=method))
    assert int(n_failures) > 20
