"""Every test of the calls runs against every manager; where all environments share one process, in the slow tier.

No process of a test is given up because it is slow: a busy machine may stop any of them for seconds.
"""

import functools
from typing import Any

import pytest

from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.patience import PATIENCE

MANAGERS: dict[str, Any] = {
    "serial": SerialEnvManager,
    "one process": functools.partial(EnvManager, n_workers=1, close_timeout=PATIENCE),
    "processes": functools.partial(EnvManager, n_workers=2, close_timeout=PATIENCE),
}


@pytest.fixture(autouse=True)
def patient(patient):
    """Of all tests of managers: a worker that ends slowly would count as hung, or its times would be missing."""


@pytest.fixture(params=["serial", "processes", pytest.param("one process", marks=pytest.mark.slow)])
def new_manager(request):
    """Makes a manager, which is closed at the end."""
    made = []

    def make(*arguments, **options):
        manager = MANAGERS[request.param](*arguments, **options)
        made.append(manager)
        return manager

    yield make
    for manager in made:
        manager.close()
