"""Between two tries of what failed, `restart_wait` seconds pass, in which the other environments go on."""

import functools
import itertools
import types
from typing import Any

import numpy as np
import pytest

from streamsampler.errors import RolloutError
from streamsampler.stepping import recovery
from streamsampler.stepping.ledger import EnvState
from streamsampler.stepping.managers import SerialEnvManager
from tests.patience import PATIENCE
from tests.stepping.conftest import MANAGERS
from tests.stepping.environments import Counting
from tests.stepping.test_restores import ACTIONS, Walk, kill, stream_of

FOREVER = 10 * PATIENCE
HOWS = ("raise", "die")


@pytest.mark.parametrize("how", ["raise", "die"])
def test_others_go_on_while_one_waits(tmp_path, how):
    (tmp_path / "0").touch()
    envs = [functools.partial(Walk, tmp_path / str(number), how=how) for number in range(2)]
    with MANAGERS["processes"](envs, n_envs=2, seed=0, restart_wait=FOREVER) as manager:
        manager.reset()
        manager.send([7], [0])
        while not manager.failures:  # until it is known
            assert manager.step([1], [1]).env_ids.tolist() == [1]
        assert manager.step([1], [1]).env_ids.tolist() == [1]
        assert manager.states == (EnvState.STEPPING, EnvState.READY)


@pytest.mark.parametrize("on_failure", ["restore", "reset"])
@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.parametrize(
    ("kind", "how"), [("serial", "raise"), *(pytest.param("processes", it, marks=pytest.mark.slow) for it in HOWS)]
)
def test_what_waited_is_what_it_would_be_without(tmp_path, kind, how, autoreset, on_failure):
    streams = []
    for wait in (0, 0.05):
        mark = tmp_path / "mark"
        mark.touch()
        marks = [mark, tmp_path / "none", tmp_path / "none"]
        envs = [functools.partial(Walk, each, length=6, how=how) for each in marks]
        options: dict[str, Any] = {"n_envs": 3, "seed": 4, "autoreset": autoreset, "on_failure": on_failure}
        streams.append(stream_of(MANAGERS[kind](envs, restart_wait=wait, **options), ACTIONS))
        assert not mark.exists()
    assert streams[0] == streams[1]


def test_a_call_to_a_worker_that_waits_for_its_start(tmp_path):
    with MANAGERS["one process"](functools.partial(Walk, tmp_path / "0", how="die"), n_envs=2, seed=0,
                                 restart_wait=0.05) as manager:  # fmt: skip
        manager.reset()
        (tmp_path / "0").touch()
        steps = manager.step(np.array([7, 1]))
        assert not steps.failed.any()
        assert manager.get_attr("level") == [0, 0]
        assert manager.stats.restored == 2


def test_a_worker_that_dies_while_an_environment_waits_in_it(tmp_path):
    """The environment is restored with the new worker, and not once more when it has waited."""
    mark = tmp_path / "mark"
    envs = [functools.partial(Walk, mark), functools.partial(Walk, tmp_path / "none")]
    with MANAGERS["one process"](envs, n_envs=2, seed=0, restart_wait=0.3) as manager:
        manager.reset()
        mark.touch()
        manager.send([7], [0])
        while not manager.failures:
            manager.step([1], [1])
        kill(manager, 0)
        assert manager.recv_from([0]).rewards.tolist() == [7]
        assert [manager.step([action], [0]).rewards.tolist() for action in (1, 2, 3, 4)] == [[1], [2], [3], [4]]
        assert manager.stats.not_restored == 0


def test_an_interrupt_while_a_worker_waits_for_its_start(tmp_path):
    """What the worker was to be told is told once: by what is asked for after the interrupt."""
    with MANAGERS["one process"](functools.partial(Walk, tmp_path / "none"), n_envs=2, seed=0,
                                 restart_wait=0.3) as manager:  # fmt: skip
        manager.reset()
        kill(manager, 0)
        manager.send(np.array([1, 1]))
        while not manager.failures:
            manager.recv(timeout=0.01)
        manager._transport.in_hand = True  # as if it had come in the middle of a call
        assert manager.recv_from().timesteps.tolist() == [1, 1]
        for timestep in (2, 3):
            assert manager.step(np.array([1, 1])).timesteps.tolist() == [timestep] * 2


def test_what_has_failed_for_good_is_made_anew_before_its_reset(monkeypatch):
    """Its caller may reset it at once: to make it anew after the time that passes between two tries would undo that."""
    looks = itertools.count(step=1e-4)  # at the clock, of which a step takes one or two
    monkeypatch.setattr(recovery, "time", types.SimpleNamespace(monotonic=looks.__next__))
    with SerialEnvManager(functools.partial(Counting, 50), n_envs=1, seed=0, restart_wait=1e-3) as manager:
        manager.reset()
        with pytest.raises(RolloutError, match="the gearbox is stuck"):
            manager.step([9])
        ((seed, _),) = manager.reset().observations.tolist()
        for timestep in range(1, 20):
            assert manager.step([1]).observations.tolist() == [[seed, timestep]]
