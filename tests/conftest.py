"""What holds for all tests."""

import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import settings

from tests.interrupts import restore_ctrl_c
from tests.never_hangs import within
from tests.side_by_side import pytest_addoption, pytest_runtestloop  # noqa: F401 - hooks

# How progress and colours are shown depends on these. Tests say which of them they are about.
for name in ("CI", "NO_COLOR"):
    os.environ.pop(name, None)
os.environ["TERM"] = "xterm"

restore_ctrl_c()

# How many examples a property is tried with, where examples do not cost so much that the test says it: some each time,
# and many with `-m hypothesis --hypothesis-profile thorough`.
settings.register_profile("quick", max_examples=25, deadline=None)
settings.register_profile("thorough", max_examples=250, deadline=None)
settings.load_profile("quick")

# Seconds for each of a test's setup, call and teardown: far more than any of the default tier takes.
LIMIT, SLOW_LIMIT = 60, 600


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, None, None]:
    """C5: whatever happens, a call ends. A test that waits for ever fails, and the others run."""
    thorough = settings().max_examples > 100 or item.get_closest_marker("slow")
    with within(SLOW_LIMIT if thorough else LIMIT):
        return (yield)


pytest_runtest_call = pytest_runtest_teardown = pytest_runtest_setup


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[None]:
    """One cluster of Ray for all tests, in this process: to start one takes 12 seconds."""
    from streamsampler.engines.ray_cluster import Demand, attach

    lease = attach("local", Demand(8))
    yield
    lease.release()
