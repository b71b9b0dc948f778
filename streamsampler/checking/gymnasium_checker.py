"""Run Gymnasium's own checker, and make findings of its warnings and errors.

All of them are warnings here: what samplers need is checked apart, and what they do not need may matter to others.
"""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gymnasium.utils import env_checker

from streamsampler.checking.findings import Finding
from streamsampler.checking.worker import TaskWorker
from streamsampler.protocol.messages import Phase
from streamsampler.workers.tracebacks import traceback_of

__all__ = ["RunGymnasiumChecker"]

_NAME = "Gymnasium"
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")

_NO_FAULT = (
    "minimum value is -infinity", "maximum value is infinity", "symmetric and normalized", "render mode",
    "is different from the unwrapped version", "Not able to test",
)  # fmt: skip
"""What it warns of, and is a matter of taste, or about what samplers do not use."""

_BUFFERS = "share an object"
_ADVICE = "Gymnasium's documentation of environments says what it expects: help(gymnasium.Env)"


@dataclass(frozen=True)
class RunGymnasiumChecker:
    """A task: run `gymnasium.utils.env_checker.check_env` without rendering: a dozen resets and steps."""

    def __call__(self, worker: TaskWorker) -> list[Finding]:
        """Run the task."""
        worker.enter(Phase.RESET)
        env: Any = worker.env.unwrapped
        shows = _Shows(worker)
        for name in ("reset", "step"):
            setattr(env, name, shows.progress_of(getattr(env, name)))
        found: list[Finding] = []
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            try:
                env_checker.check_env(env, skip_render_check=True, skip_close_check=True)
            except Exception as error:
                found.append(_of_error(error))
        texts = dict.fromkeys(_plain(str(each.message)) for each in warned if issubclass(each.category, UserWarning))
        said = [text for text in texts if not any(part in text for part in _NO_FAULT)]
        found += [Finding(_NAME, "warning", f"its checker warns: {text}", _ADVICE) for text in said]
        return found or [Finding(_NAME, "pass", "its checker finds nothing")]


def _of_error(error: Exception) -> Finding:
    text = _plain(str(error)) or type(error).__name__
    if isinstance(error, AssertionError) and _BUFFERS in text:
        return Finding(_NAME, "warning", f"its checker finds: {text}", "See buffers: samplers copy what they record")
    if isinstance(error, AssertionError):
        return Finding(_NAME, "warning", f"its checker finds: {text}", _ADVICE)
    return Finding(
        _NAME, "warning", f"its checker ended with {type(error).__name__}: {text}", _ADVICE, traceback_of(error)
    )


def _plain(text: str) -> str:
    return " ".join(_COLOUR.sub("", text).replace("WARN: ", "", 1).split())


@dataclass
class _Shows:
    """Shows that the checker makes progress.

    Attributes:
        worker: Where.
        calls: How many calls there were.
    """

    worker: TaskWorker
    calls: int = 0

    def progress_of(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that shows each of its calls."""

        @functools.wraps(method)
        def shown(*arguments: Any, **keywords: Any) -> Any:
            self.calls += 1
            self.worker.progress(self.calls)
            return method(*arguments, **keywords)

        return shown
