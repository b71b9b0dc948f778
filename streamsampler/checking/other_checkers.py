"""Run other libraries' checks: Gymnasium's checker, and PettingZoo's tests.

Their findings are warnings here, because runs of trajectories show the needs of samplers directly.
"""

from __future__ import annotations

import contextlib
import io
import re
import traceback
import warnings
from collections.abc import Callable
from typing import Any

from gymnasium.utils import env_checker

from streamsampler.checking.findings import Finding, not_checked
from streamsampler.checking.ordinary_env import OrdinaryEnv
from streamsampler.core.extras import install_hint
from streamsampler.workers.explain import summary_of, traceback_of

__all__ = ["run_gymnasium_checker", "run_pettingzoo_tests"]

_CYCLES = 100  # steps of each of PettingZoo's tests
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_NO_FAULT = {
    "Gymnasium": (
        "minimum value is -infinity", "maximum value is infinity", "symmetric and normalized", "render mode",
        "is different from the unwrapped version", "Not able to test",
    ),
    "PettingZoo": (
        "possible_agents", "render() method", "all zeros", "more than 3 dimensions", "different classes",
        "different shapes", "different number of dimensions", "different observation space", "different action space",
        "class of observation spaces", "class of action spaces", "minimum value is -infinity",
        "maximum value is infinity",
    ),
}  # fmt: skip
"""Warnings about taste, or about features that samplers do not use."""

_ADVICE = {
    "Gymnasium": "Gymnasium's documentation of environments says what it expects: help(gymnasium.Env)",
    "PettingZoo": (
        "PettingZoo's documentation says what it expects: help(pettingzoo.ParallelEnv), help(pettingzoo.AECEnv)"
    ),
}


_OF_BASES = (
    "If PettingZoo's base class has the attribute, derive the environment from it: pettingzoo.ParallelEnv or AECEnv; "
    "or ignore this warning, because samplers do not need it"
)


def run_gymnasium_checker(env: Any) -> list[Finding]:
    """Run `gymnasium.utils.env_checker.check_env` without rendering: a dozen resets and steps."""

    def check_env() -> None:
        bare = env.without_wrappers() if isinstance(env, OrdinaryEnv) else env.unwrapped
        env_checker.check_env(bare, skip_render_check=True, skip_close_check=True)

    return _findings_of("Gymnasium", "its checker", check_env)


def run_pettingzoo_tests(env: Any) -> list[Finding]:
    """Run PettingZoo's `parallel_api_test` or `api_test`: a few resets, and some hundred steps."""
    try:
        from pettingzoo.test import api_test, parallel_api_test
    except ImportError:
        return [not_checked("PettingZoo", "it is not installed, and has tests of its own", install_hint("pettingzoo"))]
    test: Any = api_test if env.takes_turns else parallel_api_test
    return _findings_of("PettingZoo", test.__name__, lambda: test(env.env, _CYCLES))


def _findings_of(name: str, what: str, run: Callable[[], Any]) -> list[Finding]:
    """Run a test, and turn its exceptions and warnings into findings."""
    found: list[Finding] = []
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        try:
            run()
        except AssertionError as error:
            why = _plain(str(error)) or traceback.extract_tb(error.__traceback__)[-1].line or "an assertion"
            advice = "Samplers copy what they record; others must, too" if "share an object" in why else _ADVICE[name]
            found.append(Finding(name, "warning", f"{what} finds: {why}", advice, traceback_of(error)))
        except (Exception, SystemExit) as error:
            text = f"{what} ended with {_plain(summary_of(error))}"
            advice = _OF_BASES if name == "PettingZoo" and isinstance(error, AttributeError) else _ADVICE[name]
            found.append(Finding(name, "warning", text, advice, traceback_of(error)))
    texts = dict.fromkeys(_plain(str(each.message)) for each in warned if issubclass(each.category, UserWarning))
    said = [text for text in texts if not any(part in text for part in _NO_FAULT[name])]
    found += [Finding(name, "warning", f"{what} warns: {text}", _ADVICE[name]) for text in said]
    return found or [Finding(name, "pass", f"{what} finds nothing")]


def _plain(text: str) -> str:
    return " ".join(_COLOUR.sub("", text).replace("WARN: ", "", 1).split())
