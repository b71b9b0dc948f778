"""What holds for all tests."""

import contextlib
import os
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from streamsampler.core import timing
from tests.fork_server import use_in_tests
from tests.interrupts import restore_ctrl_c
from tests.never_hangs import within
from tests.patience import wait_for_processes
from tests.side_by_side import pytest_addoption, pytest_runtestloop  # noqa: F401 - hooks

# How progress and colours are shown depends on these. Tests say which of them they are about.
for name in ("CI", "NO_COLOR"):
    os.environ.pop(name, None)
os.environ["TERM"] = "xterm"

restore_ctrl_c()
use_in_tests()

# How many examples a property is tried with, where examples do not cost so much that the test says it. By default few,
# and the same ones each time: whether a change lands must not depend on what is drawn. With
# `-m hypothesis --hypothesis-profile thorough` many, other ones each time.
UNHURRIED: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=25, derandomize=True, database=None, **UNHURRIED)
settings.register_profile("thorough", max_examples=250, derandomize=False, **UNHURRIED)
settings.load_profile("quick")

# Seconds for each of a test's setup, call and teardown, on a machine as busy as may be: more than ten times as long as
# the longest of the default tier takes.
LIMIT, SLOW_LIMIT = 300, 900


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """C5: whatever happens, a call ends. A test that waits for ever fails, and the others run."""
    with _limited(item):
        return (yield)


pytest_runtest_call = pytest_runtest_setup


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """Likewise; and no interrupted call keeps the accounts of what later scripts time."""
    with _limited(item):
        yield
    left, timing._local.collector = timing._local.collector, timing._local.script
    assert left is timing._local.script, f"{item.nodeid} left a collector behind"


def _limited(item: pytest.Item) -> contextlib.AbstractContextManager[None]:
    thorough = settings().max_examples > 100 or item.get_closest_marker("slow")
    return within(SLOW_LIMIT if thorough else LIMIT)


@pytest.fixture
def few_first_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let blocks get longer after the sixth, however few trajectories they have; see `index_queue.block_at`."""
    monkeypatch.setattr("streamsampler.protocol.index_queue._FIRST_TRAJECTORIES", 0)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no process of the test be given up because it is slow."""
    wait_for_processes(monkeypatch)


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One cluster of Ray for all tests, in this process: to start one takes 12 seconds."""
    from streamsampler.engines.ray_cluster import Demand, attach

    lease = attach("local", Demand(8))
    yield
    lease.release()
