"""Finding an agent by the name that the command line gives; and which files in the current directory run."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymnasium import spaces

from streamsampler.agents.random import RandomAgent
from streamsampler.cli.agents import load_agent
from streamsampler.cli.compare import short_names
from streamsampler.engines.launch.start_methods import import_path
from streamsampler.errors import UnknownAgentError
from tests.cli.harness import SCRIPTED
from tests.patience import PATIENCE

OBSERVATIONS = spaces.Box(-1, 1, (3,))
ACTIONS = spaces.Discrete(5)

MODULE = """
from streamsampler.agents.random import RandomAgent

class Agent:
    def __init__(self, *spaces, **named):
        self.spaces, self.named = spaces, named
    def get_action(self, observation):
        return 0, {}

class ByPosition(Agent):
    def __init__(self, one, two):
        super().__init__(one, two)
class ByName(Agent):
    def __init__(self, action_space, hidden=3):
        super().__init__(action_space=action_space, hidden=hidden)
class ByKeyword(Agent):
    def __init__(self, *, observation_space, action_space):
        super().__init__(observation_space=observation_space, action_space=action_space)
class NoArguments(Agent):
    def __init__(self):
        super().__init__()
class OneArgument(Agent):
    def __init__(self, path):
        pass
class NotAnAgent:
    pass

class zoo:
    best = Agent()
    class inner:
        policy = staticmethod(lambda observation: 6)

ready = Agent()
number = 3
def policy(observation): return 7
def noisy(observation, noise=0.1): return 8
def factory(observation_space, action_space): return RandomAgent(action_space)
def terse(o, a): return Agent(o, a)
def bare(): return Agent()
def of_policies(observation_space): return lambda observation: 9
def broken(o, a): return a["nothing"]
def makes_nothing(o, a): pass
def makes_a_class(o, a): return Agent
"""


@pytest.fixture
def load(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Finds agents from a current directory with modules in it, as somebody at a terminal has."""
    (tmp_path / "pack").mkdir()
    for name, text in {
        "my_agents": MODULE,
        "needs_more": "import surely_not_installed\n",
        "wrong": "def (:\n",
        "pack/__init__": "",
        "pack/deep": "policy = lambda observation: 5\n",
    }.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry not in ("", os.getcwd())])
    yield lambda name: load_agent(name, OBSERVATIONS, ACTIONS)
    for name in ("my_agents", "needs_more", "wrong", "pack", "pack.deep"):  # no others: torch loads only once
        sys.modules.pop(name, None)


def test_objects_functions_and_factories(load: Any) -> None:
    for name in ("random", "my_agents:factory", "streamsampler.agents.base:RandomAgent"):
        assert isinstance(load(name), RandomAgent)
        assert load(name).action_space == ACTIONS
    module = sys.modules["my_agents"]
    assert load("my_agents:ready") is module.ready
    assert load("my_agents:zoo.best") is module.zoo.best
    actions = {"zoo.inner.policy": 6, "policy": 7, "noisy": 8, "of_policies": 9}
    assert {name: load(f"my_agents:{name}").get_action(0)[0] for name in actions} == actions
    assert load("pack.deep:policy").get_action(0) == (5, {})
    assert load("numpy:sign").get_action(-3.0) == (-1.0, {})
    assert load("math:sqrt").get_action(4) == (2.0, {})
    for name in ("ByPosition", "terse", "Agent"):
        assert load(f"my_agents:{name}").spaces == (OBSERVATIONS, ACTIONS)
    assert load("my_agents:ByName").named == {"action_space": ACTIONS, "hidden": 3}
    assert load("my_agents:ByKeyword").named == {"observation_space": OBSERVATIONS, "action_space": ACTIONS}
    assert load("my_agents:NoArguments").spaces == load("my_agents:bare").spaces == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("randm", r"unknown agent 'randm': .*Did you mean 'random'\?"),
        ("my_agents.ready", r"Did you mean 'my_agents:ready'\?"),
        ("ppo", r"unknown agent 'ppo': an agent is 'random' or 'package.module:object'$"),
        ("", r"unknown agent ''"),
        (":ready", r"an agent is 'random' or"),
        ("my_agent:ready", r"no module 'my_agent'. Did you mean 'my_agents'\?"),
        ("nowhere_at_all:x", r"no module 'nowhere_at_all', neither installed nor in "),
        ("my_agents.py", r"Give the module's name, not its file's: 'my_agents:object'"),
        ("./pack/deep.py:policy", r"Give the module's name, not its file's: 'pack.deep:policy'"),
        ("my_agents:redy", r"my_agents has no attribute 'redy'. Did you mean 'ready'\?"),
        ("my_agents:zoo.bets", r"zoo has no attribute 'bets'. Did you mean 'best'\?"),
        ("my_agents:number", r"'my_agents:number' is no agent, but of type int"),
        ("my_agents:OneArgument", r"'my_agents:OneArgument' takes \(path\), but an agent's factory"),
        ("my_agents:makes_nothing", r"returned None, no agent"),
        ("my_agents:makes_a_class", r"returned <class .*, no agent"),
        ("my_agents:NotAnAgent", r"returned <my_agents.NotAnAgent .*, no agent"),
        ("needs_more:x", r"importing needs_more raised .*surely_not_installed"),
        ("wrong:x", r"importing wrong raised SyntaxError"),
        ("my_agents:broken", r"the agent factory 'my_agents:broken' raised TypeError: 'Discrete'"),
    ],
)
def test_what_is_no_agent(load: Any, name: str, message: str) -> None:
    with pytest.raises(UnknownAgentError, match=message) as caught:
        load(name)
    assert (caught.value.__cause__ is not None) is (" raised " in message)


@pytest.mark.parametrize(
    ("agents", "names"),
    [
        (("random", "my:agent"), ["random", "my:agent"]),
        (("a/model.zip", "b/other.zip"), ["model.zip", "other.zip"]),
        (("a/model.zip", "b/model.zip"), ["a/model.zip", "b/model.zip"]),
        (("random", "random"), ["random", "random #2"]),
    ],
)
def test_names_of_agents_that_are_compared(agents: tuple[str, ...], names: list[str]) -> None:
    assert short_names(agents) == names


SAMPLE = ("sample", "--num-trajectories", "1", "--quiet")
HOSTILE = "import os; open(os.environ['MARKER'], 'a').write(__name__ + ' ')\nraise SystemExit('ran ' + __name__)\n"
# All that the command and its workers may import. Those that Python itself imports for `-m` run before any of this.
INSTALLED = ["numpy", "gymnasium", "cloudpickle", "click", "setproctitle", "typing_extensions", "farama_notifications"]
AFTER_RUNPY = ["re", "typing", "signal", "pathlib", "json", "logging", "socket", "struct", "inspect", *INSTALLED]


@pytest.fixture
def hostile(tmp_path: Path) -> Path:
    """A current directory with a hostile file for each module that could be imported, and the user's own module."""
    (tmp_path / "here").mkdir()
    for name in sorted(sys.stdlib_module_names) + INSTALLED:
        (tmp_path / "here" / f"{name}.py").write_text(HOSTILE)
    (tmp_path / "here" / "scripted.py").write_text(f"import colorsys\n{SCRIPTED}")  # which nothing else imports
    # What an installer makes of an entry point, and where it stands: its own folder comes first in `sys.path`.
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "streamsampler").write_text("from streamsampler.cli import main\nmain()\n")
    return tmp_path


def run(hostile: Path, *command: object) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "MARKER": str(hostile / "ran"), "PYTHONDONTWRITEBYTECODE": "1"}
    python = [sys.executable, *map(str, command)]
    result = subprocess.run(
        python, cwd=hostile / "here", env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert not (hostile / "ran").exists(), (hostile / "ran").read_text()
    assert (result.returncode, "trajectories  1" in result.stdout) == (0, True), result.stderr
    return result


# With `spawn` Python itself looks for Windows's `_winapi`, there as everywhere.
NAMED = ("scripted:Scripted-v0", "--agent", "scripted:always_two", "--start-method", "forkserver")


@pytest.mark.parametrize(
    "arguments",
    [NAMED, *(pytest.param(("CartPole-v1", "--start-method", m), marks=pytest.mark.slow) for m in ("spawn", "fork"))],
)
@pytest.mark.slow
def test_nothing_runs_from_the_current_directory_but_what_is_named(hostile: Path, arguments: tuple[str, ...]) -> None:
    assert run(hostile, hostile / "bin" / "streamsampler", *SAMPLE, *arguments).stderr == ""


@pytest.mark.slow
def test_python_m_forgets_the_current_directory(hostile: Path) -> None:
    told = run(hostile, hostile / "bin" / "streamsampler", *SAMPLE[:-1], "CartPole-v1", "--import", "json").stderr
    assert "Warning: json was imported from " in told
    assert f"which hides {hostile / 'here' / 'json.py'}: rename the latter to use it" in told
    for path in (hostile / "here").iterdir():
        if path.stem not in (*AFTER_RUNPY, "scripted"):
            path.unlink()
    assert run(hostile, "-m", "streamsampler", *SAMPLE, "Scripted-v0", "--import", "scripted").stderr == ""


def test_other_processes_look_there_only_for_what_was_loaded_from_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = str(Path(sys.modules["streamsampler"].__file__ or "").parents[1])
    monkeypatch.chdir(tmp_path)
    for current in ("", str(tmp_path), "."):
        monkeypatch.setattr(sys, "path", [current, "/elsewhere", installed])
        assert import_path("vendored.module") == ["/elsewhere", installed]
    vendored = types.ModuleType("vendored")
    vendored.__file__ = str(tmp_path / "vendored" / "__init__.py")
    monkeypatch.setitem(sys.modules, "vendored", vendored)
    assert import_path("vendored.module") == [str(tmp_path.resolve()), "/elsewhere", installed]
