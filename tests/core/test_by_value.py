"""What the main script defines, in whatever style, travels to workers, or is one clear error."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys

import pytest

from tests.core.styles import REFUSED, STYLES, results

_LOAD = """
import pickle, sys
from streamsampler.core.serialization import loads
found = {}
for name, payload in pickle.load(sys.stdin.buffer).items():
    if isinstance(payload, str):
        found[name] = payload
        continue
    try:
        obj, check = loads(payload)
        found[name] = bool(check(obj))
    except Exception as error:
        found[name] = f"{type(error).__name__}: {error}"
sys.stdout.buffer.write(pickle.dumps(found))
"""


def run(*command, **options):
    return subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, check=True, **options).stdout


@pytest.fixture(scope="module")
def travelled():
    """By name what each style was in a process that does not have the script: true, or what went wrong."""
    return pickle.loads(run("-c", _LOAD, input=run("-m", "tests.core.styles", "pickles")))


def test_the_checks_hold_where_nothing_travels():
    assert all(results().values())


@pytest.mark.parametrize("name", STYLES)
def test_a_style_of_the_main_script_travels(travelled, name):
    assert travelled[name] is True


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_travel_is_an_error_that_names_it(travelled, name):
    assert re.search(f"^the agent .* cannot be pickled.*{REFUSED[name][1]}", str(travelled[name]))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["local", "processes", "forkserver", "spawn", "fork"])
def test_environments_and_agents_of_the_main_script_use_all_styles(kind):
    found = json.loads(run("-m", "tests.core.styles", "sample", kind))
    assert [name for name, holds in found.items() if not holds] == []
    assert len(found) == 2 * len(STYLES) + 1


_ATTRS = """
import attr, functools, gymnasium
from streamsampler import MultiprocessingSampler

@attr.define
class Place:
    x: int = 1
    seen: list = attr.field(factory=list)

    @functools.cached_property
    def doubled(self):
        return 2 * self.x

@attr.frozen
class Task:
    place: Place

@attr.define(eq=False)
class Env(gymnasium.Env):
    task: Task = attr.field(factory=lambda: Task(Place(3)))
    observation_space = action_space = gymnasium.spaces.Discrete(9)

    def reset(self, *, seed=None, options=None):
        return self.task.place.doubled, {}

    def step(self, action):
        return self.task.place.x, 1.0, True, False, {"kept": not hasattr(self.task.place, "__dict__")}

with MultiprocessingSampler("random", Env(), n_workers=1, seed=1) as sampler:
    batch = sampler.obtain_trajectories(1)
print(batch.observations.tolist(), batch.last_observations.tolist(), batch.env_infos["kept"].tolist())
"""


@pytest.mark.extras
@pytest.mark.ray  # which needs attrs
def test_classes_of_attrs_travel():
    assert run("-c", _ATTRS) == b"[6] [3] [True]\n"
