"""Tests of the calls run against both managers. No process is given up because it is slow: a machine may be busy."""

import contextlib
import os
import select
import signal
from typing import Any

import pytest

from streamsampler.stepping.managers import EnvManager, SerialEnvManager
from tests.patience import PATIENCE, closing_patiently


def _processes(*args: Any, **options: Any) -> EnvManager:
    return EnvManager(*args, **{"n_workers": 2, **closing_patiently(options)})


MANAGERS: dict[str, Any] = {"serial": SerialEnvManager, "processes": _processes}
MODES = ["next_step", "same_step", "disabled"]


@pytest.fixture(autouse=True)
def patient(patient):
    """Of all tests of managers: a worker that ends slowly would count as hung, or its times would be missing."""


@pytest.fixture(params=MANAGERS)
def new_manager(request):
    """Makes a manager, which is closed at the end."""
    with contextlib.ExitStack() as made:
        yield lambda *args, **options: made.enter_context(MANAGERS[request.param](*args, **options))


def kill(manager, *workers):
    """Kill workers of a manager or a sampler, all if none is named, and wait until they have ended."""
    pids = manager.worker_pids()
    for pid in [pids[number % len(pids)] for number in workers] or pids:
        with contextlib.suppress(ProcessLookupError):  # it was killed before
            await_end(pid, lambda pid: os.kill(pid, signal.SIGKILL))


def await_end(pid, before=lambda _: None):
    """Wait until a process ends."""
    ended = os.pidfd_open(pid)
    before(pid)
    assert select.select([ended], [], [], PATIENCE)[0], "it is left"
    os.close(ended)
