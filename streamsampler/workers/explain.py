"""Explain exceptions of rollouts: their place, and wrong return values or actions of user code."""

from __future__ import annotations

import contextlib
import importlib
import re
import traceback
from pathlib import Path
from typing import Any

from gymnasium import Space
from gymnasium.envs import registration
from gymnasium.spaces import Discrete

from streamsampler.core.errors import ActionError, DataError, RemoteTraceback, UsageError
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.environments.closing import EnvCloseError
from streamsampler.environments.multi_agent import ParallelEnv, SpacesOfAgents
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.script import trajectory

_SUMMARY_LENGTH = 2_000


def class_names(error: BaseException) -> tuple[str, ...]:
    """Return the names of an exception's class and bases; for an `EnvCloseError` also those of its cause."""
    kinds = type(error).__mro__
    if isinstance(error, EnvCloseError):
        kinds += type(error.__cause__).__mro__
    return tuple(f"{kind.__module__}.{kind.__qualname__}" for kind in kinds)


def is_interrupt(error: BaseException | None) -> bool:
    """Return whether an exception interrupts the thread's caller, such as Ctrl-C or any exception of a signal handler.

    In the caller's thread it passes through unchanged.
    """
    return error is not None and not isinstance(error, Exception | SystemExit)


def summary_of(error: BaseException) -> str:
    """Return an exception in a single line of bounded length."""
    summary = "".join(traceback.format_exception_only(error)).strip()
    if len(summary) > _SUMMARY_LENGTH:
        return f"{summary[:_SUMMARY_LENGTH]} … ({len(summary):,} characters in all)"
    return summary


def name_of_env(env: Any) -> str:
    """Return an environment's id, or its class's name, for messages."""
    env = getattr(env, "unwrapped", env)  # a wrapper's spec is a deep copy
    return str(getattr(getattr(env, "spec", None), "id", type(env).__qualname__))  # EnvPool's specs have no id


def locate(error: DataError, env: Any, timestep: int | None) -> None:
    """Add environment and timestep to the message of an error about recorded data, once."""
    if error.located:
        return
    error.located = True
    which = "" if env is None else f"{name_of_env(env)}: "
    when = "" if timestep is None else f", at timestep {timestep} of its trajectory"
    error.args = (f"{which}{error}{when}", *error.args[1:])


def row_at_fault(error: BaseException, default: int) -> int:
    return default if not isinstance(error, DataError) or error.row is None else error.row


def raised_in(error: BaseException, function: Any) -> bool:
    """Return whether a line of `function` itself raised, for example while unpacking a result."""
    frame = error.__traceback__
    while frame is not None and frame.tb_next is not None:
        frame = frame.tb_next
    return frame is None or frame.tb_frame.f_code is function.__code__


def step_error(
    error: BaseException, action: Any, space: Space[Any], function: Any = trajectory
) -> UsageError | ActionError | None:
    """Return a better error for an exception of a step, or None. An action outside the space is the agent's fault."""
    if isinstance(error, TypeError | ValueError) and raised_in(error, function):
        return UsageError("step must return (observation, reward, terminated, truncated, info)")
    if not isinstance(error, Exception):
        return None
    if isinstance(space, SpacesOfAgents) and isinstance(action, dict):
        wrong = next((agent for agent, its in action.items() if not space.contains({agent: its})), None)
        if wrong is None:
            return None
        return _wrong_action(f"the action {action[wrong]!r} of agent {wrong!r}", action[wrong], space.spaces.get(wrong))
    try:
        inside = space.contains(action)
    except Exception:
        inside = False
    return None if inside else _wrong_action(f"the agent's action {action!r}", action, space)


def _wrong_action(what: str, action: Any, space: Space[Any] | None) -> ActionError:
    """Return the error for an action outside its space, or of another library's type, such as a tensor."""
    if type(action).__module__.partition(".")[0] not in ("torch", "jax", "jaxlib", "tensorflow"):
        return ActionError(f"{what} is outside {space}")
    advice = "int(action)" if isinstance(space, Discrete) else "a NumPy array, such as np.asarray(action)"
    kind, shape = type(action).__name__, tuple(getattr(action, "shape", ()))
    of_shape = f" of shape {shape}" if shape != (space.shape if space is not None else ()) else ""
    return ActionError(f"{what} is a {kind}{of_shape}, and {space} contains no values of this type: return {advice}")


def explain_rollout(
    worker: Any, error: BaseException, action: Any, env: Any, recorder: RolloutRecorder, *, asking: Any,
    stepping: Any = trajectory,
) -> None:  # fmt: skip
    """Raise a better error for an exception of a rollout if its reason is known.

    `asking` and `stepping` are the functions which unpack the results of `get_action` and `step`.

    Raises:
        UsageError: The agent or the environment returned an invalid value.
        ActionError: The last action is outside its space.
    """
    phase = worker.phase
    data_error = error if isinstance(error, ActionError) or phase is Phase.RECORDING else None
    if isinstance(data_error, DataError):
        row = len(recorder.float_rewards) if data_error.row is None else data_error.row
        locate(data_error, env, None if row < 0 else row - recorder.n_timesteps)
    if phase is Phase.ACTION and isinstance(error, TypeError | ValueError) and raised_in(error, asking):
        raise UsageError("get_action must return (action, agent_info), with agent_info a dict") from error
    if phase is Phase.STEP:
        if (better := step_error(error, action, env.action_space, stepping)) is not None:
            if isinstance(better, ActionError):
                worker.phase = Phase.ACTION
            raise better from error
        note_missing_action(error, env, action)


def note_missing_action(error: BaseException, env: Any, action: Any) -> None:
    """Add a note to a `KeyError` of an environment which expected an absent agent's action."""
    several = getattr(env, "unwrapped", None)
    if isinstance(error, KeyError) and isinstance(several, ParallelEnv):
        several.explain_missing_action(error, action)


# Hidden from users: this package, and the modules through which it calls user code.
_OWN_FRAMES = (
    f"{Path(__file__).parents[1]}/",
    *(str(module.__file__) for module in (registration, importlib, contextlib)),
    "<frozen importlib",
)
_FRAME = re.compile(r'^  File "(?P<file>.*)", line \d+')


def traceback_of(error: BaseException | None) -> str:
    """Return the traceback of user code, without this package's frames; empty if no frame is user code."""
    if error is None:
        return ""
    text = error.text if isinstance(error, RemoteTraceback) else "".join(traceback.format_exception(error))
    text = without_own_frames(text.strip("\n"))
    return text if any(_FRAME.match(line) for line in text.split("\n")) else ""


def without_own_frames(text: str) -> str:
    """Remove this package's frames from tracebacks and stacks in a text."""
    kept, own = [], False
    for line in text.split("\n"):
        frame = _FRAME.match(line)
        if frame is not None:
            own = frame["file"].startswith(_OWN_FRAMES)
        elif not line.startswith("    "):  # a frame's lines of code are indented more than its heading
            own = False
        if not own:
            kept.append(line)
    return "\n".join(kept)
