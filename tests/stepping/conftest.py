"""Every test of the calls runs against every manager."""

from typing import Any

import pytest

from streamsampler.stepping.serial import SerialEnvManager

MANAGERS: dict[str, Any] = {"serial": lambda *args, **kwargs: SerialEnvManager(*args, **kwargs)}


@pytest.fixture(params=MANAGERS)
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
