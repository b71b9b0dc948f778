"""The argument `limits`: who refuses which, and who keeps them."""

from __future__ import annotations

from typing import Any

import pytest

from streamsampler import EnvManager, Limits, LocalSampler, MultiprocessingSampler, SerialEnvManager
from streamsampler.core import keywords
from streamsampler.errors import UsageError
from streamsampler.protocol.limits import LIMITS, limits_of
from tests.scripted.failing import Agent, Env

OF_PROCESSES: dict[str, Any] = {"construction_timeout": 9.0, "close_timeout": 9.0, "max_worker_memory": 1 << 30}


def test_what_was_an_argument_of_its_own_is_known_to_be_one_of_the_limits() -> None:
    assert set(LIMITS) == keywords.LIMITS


@pytest.mark.parametrize("given", [{"close_timeout": 9.0}, None, Limits, 3])
def test_limits_are_given_as_limits(given: Any) -> None:
    for call in (
        lambda: LocalSampler(Agent(), Env, limits=given),
        lambda: MultiprocessingSampler(Agent(), Env, limits=given),
        lambda: SerialEnvManager(Env, n_envs=1, limits=given),
        lambda: EnvManager(Env, n_envs=1, limits=given),
    ):
        with pytest.raises(
            UsageError, match=r"limits must be a Limits object, such as Limits\(close_timeout=30.0\), got "
        ):
            call()


@pytest.mark.parametrize("name", OF_PROCESSES)
def test_what_needs_worker_processes_is_refused_without_them(name: str) -> None:
    limits = Limits(**{name: OF_PROCESSES[name]})
    with pytest.raises(UsageError, match=rf"LocalSampler takes no limits\.{name}: it has no worker processes"):
        LocalSampler(Agent(), Env, limits=limits)
    with pytest.raises(UsageError, match=rf"SerialEnvManager takes no limits\.{name}: it has no worker processes"):
        SerialEnvManager(Env, n_envs=1, limits=limits)
    if name == "max_worker_memory":
        with pytest.raises(
            UsageError, match=r"EnvManager takes no limits\.max_worker_memory: its workers hold episodes"
        ):
            EnvManager(Env, n_envs=1, limits=limits)


def test_what_needs_no_processes_is_taken_without_them() -> None:
    limits = Limits(restart_window=None, max_lifetime_restarts=3)
    LocalSampler(Agent(), Env, limits=limits).close()
    SerialEnvManager(Env, n_envs=1, limits=limits).close()


def test_the_names_of_limits_are_those_that_a_policy_has() -> None:
    assert limits_of(Limits(close_timeout=9.0), "it") == {
        "construction_timeout": None,
        "close_timeout": 9.0,
        "restart_window": 60.0,
        "max_lifetime_restarts": "auto",
        "max_worker_memory": None,
    }
