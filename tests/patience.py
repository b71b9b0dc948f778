"""Let this process wait for its workers as long as they need: a busy machine may stop any process for seconds.

The package waits a second or two before it kills a process, or gives up what that process still has to say: what
raised while it closed, its times, its exit code, its stack. A test that is not about these limits must not depend on
them. Whatever is patched here is gone at the end of the test.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest

from streamsampler import Limits
from streamsampler.engines.launch.start_methods import has_processes

__all__ = ["LIMITS", "PATIENCE", "closing_patiently", "wait_for_exit_codes", "wait_for_processes", "wait_for_stacks"]

PATIENCE = 120.0
"""Seconds that anything may take which is about to happen; nothing takes so long if all is well."""


def closing_patiently(options: dict[str, Any]) -> dict[str, Any]:
    """Return a sampler's or manager's options with as much time for closing as may be, where they say nothing else."""
    limits = options.get("limits", Limits())
    if limits.close_timeout == Limits.close_timeout:
        limits = replace(limits, close_timeout=PATIENCE)
    return {**options, "limits": limits}


_EXIT_CODES = [
    "engines.launch.worker_child._REPORT_SECONDS",
    "engines.processes.pool.END_SECONDS",
    "stepping.links.END_SECONDS",
]
_ENDS = [
    "engines.launch.worker_child._GONE_SECONDS",
    "engines.processes.pool.GRACE_SECONDS",
    "stepping.inference.environments.STUCK_SECONDS",
    "stepping.inference.env_processes.STUCK_SECONDS",
    "stepping.process_transport._REPORT_SECONDS",
]
_ENDS_EVERYWHERE = [
    "engines.linked.END_SECONDS",
    "engines.linked.GRACE_SECONDS",
    "engines.linked.STUCK_SECONDS",
    "engines.queue_link.END_SECONDS",
    "engines.queued_workers.END_SECONDS",
    "engines.queued_workers.GRACE_SECONDS",
]
LIMITS = _ENDS_EVERYWHERE + (_EXIT_CODES + _ENDS if has_processes() else [])
"""The limits on the ends of processes, by the module and name of their constants."""


def wait_for_exit_codes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the watchdog of a worker that has ended: after two seconds its exit code counts as unknown."""
    _set(monkeypatch, _EXIT_CODES)


def wait_for_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait until processes end, or close, by themselves: otherwise a slow one would be killed before it is done."""
    _set(monkeypatch, LIMITS)


def wait_for_stacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for the stacks of a worker that hangs: after a second it counts as one that does not answer."""
    _set(monkeypatch, ["engines.processes.stacks._FIRST_SECONDS"])
    monkeypatch.setattr("streamsampler.engines.processes.stacks._SILENCE_SECONDS", 3.0)


def _set(monkeypatch: pytest.MonkeyPatch, names: list[str]) -> None:
    # All modules first: one that is imported afterwards would take its constant from another one that is patched, and
    # keep it when the test is over.
    for name in names:
        importlib.import_module(f"streamsampler.{name.rpartition('.')[0]}")
    for name in names:
        monkeypatch.setattr(f"streamsampler.{name}", PATIENCE)
