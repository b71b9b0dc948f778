"""A child that the user's program forks leaves the environments to its parent; spaces of the script travel."""

import subprocess
import sys

import pytest

FORKING = """
import gc, os, sys
from streamsampler import EnvManager
from tests.stepping.environments import Counting

manager = EnvManager(Counting, n_envs=2, n_workers=2, seed=0)
manager.reset()
pids = manager.worker_pids()
pid = os.fork()
if pid == 0:
    files = [os.memfd_create(f"file {number}") for number in range(40)]
    # What it does with the manager must go to no file of its own, either.
    def check():
        sizes = {os.fstat(fd).st_size for fd in files}
        os._exit(0 if sizes == {0} else 3)
    WHAT
    check()
status = os.waitpid(pid, 0)[1]
steps = manager.step([1, 1])
print(status, steps.timesteps.tolist(), manager.failures, manager.worker_pids() == pids)
manager.close()
"""

CHILDREN = {
    "exits": "import atexit; atexit.register(check); sys.exit(0)",
    "closes": "manager.close()",
    "makes its own": "manager.close(); manager.launch(); assert len(manager.reset()) == 2; manager.close()",
    "collects": "del manager; gc.collect()",
    "leaves a block": "manager.__exit__()",
    "steps": """
    try:
        manager.step([1, 1])
    except Exception as error:
        assert "forked" in str(error), error
    else:
        os._exit(4)""",
    "asks": """
    try:
        manager.stats
    except Exception as error:
        assert "forked" in str(error), error""",
}


@pytest.mark.parametrize(
    "name",
    [name if name in ("closes", "steps") else pytest.param(name, marks=pytest.mark.slow) for name in CHILDREN],
)
@pytest.mark.slow
def test_a_forked_child_leaves_the_environments_alone(name):
    code = FORKING.replace("WHAT", CHILDREN[name])
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (run.stdout, run.stderr) == ("0 [1, 1] 0 True\n", "")


SPACES = """
import gymnasium, numpy as np
from streamsampler import EnvManager

class MyBox(gymnasium.spaces.Box):
    pass

class Env(gymnasium.Env):
    observation_space = MyBox(-9, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 0.0, False, False, {}

with EnvManager(Env, n_envs=2, n_workers=2, seed=0) as manager:
    manager.reset()
    print(manager.step([1, 1]).observations.tolist(), isinstance(manager.observation_space, MyBox))
"""


def test_spaces_of_a_class_of_the_script():
    run = subprocess.run([sys.executable, "-"], input=SPACES, capture_output=True, text=True, timeout=120)
    assert (run.stdout, run.stderr) == ("[[1.0], [1.0]] True\n", "")
