"""No memory, no shared memory, no descriptors: an error that says so, and nothing half done."""

import functools
import gc
import os
import re
import subprocess
import sys
import textwrap

import pytest

from streamsampler import MultiprocessingSampler
from streamsampler.engines.launch.descriptor_limit import PER_WORKER
from streamsampler.errors import RolloutError
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.contracts.conftest import open_files
from tests.faults.out_of_memory import OutOfMemoryEnv
from tests.faults.undisturbed import SEED, undisturbed
from tests.tiers import mostly_slow


def run_script(tmp_path, text, *command):
    """Run a script, in a process that may lack things; return what it printed."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(
        [*command, sys.executable, script], env=environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("shape", "wanted"), [((2,), 1 << 30), ((1_000_000,), 0)], ids=["in the environment", "in the recording"]
)
def test_out_of_memory(shape, wanted):
    with MultiprocessingSampler(
        ScriptedAgent(), functools.partial(OutOfMemoryEnv, shape, wanted), n_workers=1, seed=SEED
    ) as it:
        with pytest.raises(RolloutError) as caught:
            it.obtain_trajectories(2)
        assert isinstance(caught.value.original, MemoryError | OSError)
        assert "emory" in str(caught.value)
        assert it.stats.restarts == 0
        batch = it.obtain_trajectories(8, agent_update={"offset": 1}, env_update=ScriptedEnv)
        assert batch == undisturbed(2)[1]


FEW_DESCRIPTORS = """
import errno, itertools, os, resource, time
import streamsampler.engines.processes.engine
from streamsampler import MultiprocessingSampler
from streamsampler.testing import ScriptedAgent, ScriptedEnv
from tests.contracts.conftest import descendants

streamsampler.engines.processes.engine.make_room = lambda n_workers: None  # or there would be enough, or no attempt

def make():
    return MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=3, seed=1)

def left():
    return descendants(), len(os.listdir("/proc/self/fd"))

def left_in_the_end():
    # A watchdog reports before it ends.
    deadline = time.monotonic() + 60
    while left() != before and time.monotonic() < deadline:
        time.sleep(0.01)
    return left()

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
make().close()  # the fork server stays, once there is one
before = left()
while len(before[0]) > 1:
    time.sleep(0.01)
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
    assert left_in_the_end() == before, (limit, before, left())
    if made:
        break
with make() as sampler:
    assert sampler.obtain_trajectories(4).n_trajectories == 4
print(limit - before[1])
"""


@pytest.mark.slow
def test_no_half_built_sampler_when_descriptors_run_out(tmp_path):
    (n_failures,) = run_script(tmp_path, FEW_DESCRIPTORS)
    assert int(n_failures) > 20


FEWER_ALLOWED = """
import functools, os, resource
import gymnasium, numpy
from streamsampler import MultiprocessingSampler
from streamsampler.engines.launch import start as launch
from streamsampler.testing import ScriptedAgent, ScriptedEnv

class Limits(ScriptedEnv):
    def step(self, action):
        *result, info = super().step(action)
        return *result, {{"limit": resource.getrlimit(resource.RLIMIT_NOFILE)[0]}}

first, soft, hard, n_workers = {first}, {soft}, {hard}, {n_workers}
if first:  # and with it the fork server
    MultiprocessingSampler(ScriptedAgent(), ScriptedEnv, n_workers=1).close()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
try:
    envs = functools.partial(Limits, shape=(1_000,))
    with MultiprocessingSampler(ScriptedAgent(), envs, n_workers=n_workers) as sampler:
        batch = sampler.obtain_exact_trajectories(1)
        print(resource.getrlimit(resource.RLIMIT_NOFILE)[0] > soft, set(batch.env_infos["limit"].tolist()) == {{soft}})
        print(len(os.listdir("/proc/self/fd")) < resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        servers = [server._process.pid for server in launch._servers.values()]
        print(all(resource.prlimit(pid, resource.RLIMIT_NOFILE)[0] >= hard for pid in servers))
except OSError as error:
    print(type(error).__name__, error.errno, str(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize("first", [False, True])
def test_the_limit_of_descriptors_is_raised_for_the_sampler_and_not_for_workers(tmp_path, first):
    """And for the fork server, as far as it goes."""
    script = FEWER_ALLOWED.format(first=first, soft=64, hard=256, n_workers=10)
    assert run_script(tmp_path, script) == ["True"] * 4


def test_too_few_descriptors_are_an_error_that_says_how_many_are_needed(tmp_path):
    script = FEWER_ALLOWED.format(first=False, soft=64, hard=256, n_workers=50)
    said = " ".join(run_script(tmp_path, script))
    found = re.fullmatch(
        r"ResourceLimitError 24 50 workers need (\d+) file descriptors \(7 for each worker, and (\d+) are open "
        r"already\), but this process may open only 256: raise the limit before it starts \(`ulimit -n (\d+)`\), "
        r"or use at most (\d+) workers",
        said,
    )
    assert found, said
    needed, n_open, advised, possible = map(int, found.groups())
    assert needed == advised == n_open + 40 + 50 * 7
    assert possible == (256 - n_open - 40) // 7


FEW_FOR_PROCESSES = """
import os, resource
from streamsampler import MultiprocessingSampler
from streamsampler.testing import ScriptedAgent, ScriptedEnv

def make():
    return MultiprocessingSampler(
        ScriptedAgent(), ScriptedEnv, n_workers=50, inference="parent", worker_args={{"n_envs": 50}}
    )

sampler = make() if {is_made} else None
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 256))
try:
    (sampler or make()).{call}
except OSError as error:
    print(type(error).__name__, error.errno, str(error))
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_made", mostly_slow([True, False]))
@pytest.mark.parametrize("call", mostly_slow(["obtain_trajectories(3)", "obtain_fragments(3)"]))
def test_too_few_descriptors_for_environments_of_an_agent_in_this_process_are_the_same_error(tmp_path, is_made, call):
    """In the constructor, and in the call if other code took them, or lowered the limit, in between."""
    said = " ".join(run_script(tmp_path, FEW_FOR_PROCESSES.format(is_made=is_made, call=call)))
    assert re.match(
        r"ResourceLimitError 24 50 workers need \d+ file descriptors .* this process may open only 256", said
    ), said


def descriptors_with(n_workers):
    """Return how many descriptors a sampler takes, whatever an earlier test's garbage gives back meanwhile."""
    env = functools.partial(ScriptedEnv, shape=(10_000,))
    gc.collect()
    before = open_files()
    with MultiprocessingSampler(ScriptedAgent(), env, n_workers=n_workers) as sampler:
        sampler.obtain_exact_trajectories(2)
        return len(open_files() - before)


@pytest.mark.slow
def test_a_worker_takes_as_many_descriptors_as_are_counted_for_it():
    descriptors_with(1)  # the fork server stays, once there is one
    shared_and_one, four = descriptors_with(1), descriptors_with(4)
    each = (four - shared_and_one) / 3
    assert 0 < each <= PER_WORKER
    assert shared_and_one - each < 20
