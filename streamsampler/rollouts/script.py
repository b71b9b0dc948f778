"""Run a trajectory as a generator: reset, record, step, record, until it ends.

A script knows the environment, the recorder and the hooks. It yields an observation wherever it needs an action, and
receives the action. Its driver knows the agent: it computes and records actions, seeds the global generators, shows
progress, and ends the record.

If a reset or step is pending, the script first yields it and receives the completed result; a driver throws the
environment's exception into it.

- A suspended script is a suspended episode. `close()` abandons it.
- `throw(Cut())` ends a part: the script yields an `End`, and resumes when it receives the next part's `Binding`.
- To restore an episode, drive a new script with the recorded actions.
- An exception closes a script: its trajectory can only run again from the start.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Protocol

from streamsampler.core.errors import UsageError
from streamsampler.data.recorder import RolloutRecorder
from streamsampler.data.spaces import FLAGS
from streamsampler.protocol.messages import Phase
from streamsampler.rollouts.outer_wrappers import OuterWrappers

# An enum's member costs 100 ns to look up on Python 3.11.
_RESET, _AGENT_RESET, _RECORDING, _STEP = Phase.RESET, Phase.AGENT_RESET, Phase.RECORDING, Phase.STEP


class Cut(Exception):  # noqa: N818 - an instruction, not an error
    """Ends a part of a trajectory, at an observation without an action yet."""


@dataclass(slots=True)
class End:
    """Describes the end of a trajectory or part. Not a tuple: a generator returns a tuple at twice the cost.

    Attributes:
        observation: The last observation.
        terminated: Whether the environment terminated it.
        truncated: Whether the environment truncated it.
        limited: Whether it has reached `max_episode_length`.
        info: The info of the last observation.
        n_timesteps: Its timesteps in all parts.
    """

    observation: Any
    terminated: bool
    truncated: bool
    limited: bool
    info: Any
    n_timesteps: int

    @property
    def ended(self) -> bool:
        """Whether the trajectory has ended, and not only a part of it."""
        return self.terminated or self.truncated or self.limited


class TrajectoryHooks(Protocol):
    """Receives the timesteps of a script's trajectory, after they are recorded."""

    def start(self, observation: Any, info: Any) -> None: ...

    def timestep(self, observation: Any, terminated: Any, truncated: Any, info: Any) -> None: ...

    def end(self, *, limited: bool) -> None:
        """Receive the end, before the trajectory's record ends."""


class Binding(NamedTuple):
    """Holds the surroundings of a part; another call may replace them.

    Attributes:
        step: Steps the environment.
        recorder: Records the part.
        hooks: Receives its timesteps, or None.
        waits: Whether `reset` and `step` return pending results.
        outer: The outermost wrappers if the script replaces them; only without hooks.
    """

    step: Callable[[Any], Any]
    recorder: RolloutRecorder
    hooks: TrajectoryHooks | None = None
    waits: bool = False
    outer: OuterWrappers | None = None


Script = Generator[Any, Any, End]
"""Yields observations, receives actions, returns the end; see the module docstring."""


def trajectory(  # noqa: C901 - a single loop over local variables
    reset: Callable[..., Any], binding: Binding, seed: int, begin: Callable[[int], None] | None = None,
    limit: int | None = None,
) -> Script:  # fmt: skip
    """Run a trajectory, with all of the loop's state in local variables: the package's speed depends on it.

    Args:
        reset: Resets the environment: `reset(seed=seed)`.
        binding: The environment's step, the recorder and the hooks.
        seed: The trajectory's seed.
        begin: Resets the agent; called with the seed after the environment's reset.
        limit: Maximum number of timesteps; None for any.

    Yields:
        A recorded observation for each action; an `End` for each `Cut`, after which the script receives a `Binding`,
        records the same observation again, and yields it.
    """
    step, recorder, hooks, waits, outer = binding
    phase = _RESET if hooks is None else None  # for `phase_of`; None while hooks set the worker's phase
    result = reset(seed=seed)
    if waits:
        result = yield result
    observation, info = result if result.__class__ is tuple and len(result) == 2 else begin_of(result)
    if begin is not None:
        phase = phase and _AGENT_RESET
        begin(seed)
    phase = _RECORDING
    recorder.begin(info)
    if hooks is not None:
        phase = None
        hooks.start(observation, info)
        phase = _RECORDING
    n_timesteps, flags, last, env, truncated_at = 0, FLAGS, limit, None, None
    while True:
        if outer is not None:
            before, (env, left) = n_timesteps, outer.begin()
            if left is not None:
                truncated_at = n_timesteps + left
                last = truncated_at if limit is None else min(limit, truncated_at)
        # If the recorder stores no bytes, `dtype` equals no observation's; if it stores no floats, `plain` is no
        # reward's class.
        record, encoded = recorder.record_observation, recorder.encoded_observations
        dtype, shape = recorder.observation_dtype, recorder.observation_shape
        rewards, plain = recorder.float_rewards, recorder.reward_class
        try:
            numbers = count(n_timesteps + 1) if last is None else range(n_timesteps + 1, last + 1)
            for n_timesteps in numbers:  # noqa: B007 - the count goes on after a cut
                # Before the agent receives it: the environment may reuse the array in its next step, and the agent may
                # change it.
                try:
                    if (observation.dtype is dtype or observation.dtype == dtype) and observation.shape == shape:
                        encoded.append(observation.tobytes())  # type: ignore[union-attr]
                    else:
                        record(observation)
                except AttributeError:
                    record(observation)
                action = yield observation
                phase = _STEP
                # Looked up at each step, as a wrapper does: an environment may replace its own `step`.
                result = step(action) if env is None else env.step(action)
                if waits:
                    result = yield result
                observation, reward, terminated, truncated, info = result
                phase = _RECORDING
                if reward.__class__ is plain:
                    rewards.append(reward)  # type: ignore[arg-type]
                else:
                    recorder.record_reward(reward)
                if info.__class__ is not dict or info:
                    recorder.record_env_info(len(rewards) - 1, info)
                if terminated is False and truncated is False:
                    if hooks is None:
                        continue
                elif terminated.__class__ not in flags or truncated.__class__ not in flags:
                    terminated, truncated = recorder.flags(terminated, truncated)
                if hooks is not None:
                    phase = None
                    hooks.timestep(observation, terminated, truncated, info)
                    phase = _RECORDING
                if terminated or truncated:
                    break
            limited = n_timesteps == limit
            if outer is not None:
                truncated = truncated or n_timesteps == truncated_at
                outer.end(n_timesteps - before)
            if hooks is not None:
                phase = None
                hooks.end(limited=limited)
            return End(observation, bool(terminated), bool(truncated), limited, info, n_timesteps)
        except Cut:
            n_timesteps -= 1  # the last observation has no action yet
            recorder.discard_last_observation()
            if outer is not None:
                outer.end(n_timesteps - before)
                last, env, truncated_at = limit, None, None  # the next part may have other wrappers
        step, recorder, hooks, waits, outer = yield End(observation, False, False, False, info, n_timesteps)
        recorder.begin({})


def begin_of(result: Any) -> tuple[Any, Any]:
    """Return the observation and the info from a reset's result, or raise `UsageError`."""
    if not isinstance(result, tuple) or len(result) != 2:
        size = f" of {len(result)}" if isinstance(result, tuple) else ""
        raise UsageError(f"reset must return (observation, info), got {type(result).__name__}{size}")
    return result


def own_error(error: BaseException) -> BaseException:
    """Return an exception as the environment raised it: Python replaces a script's `StopIteration` by `RuntimeError`.

    Do not store the result in a variable: exception, traceback and frame would form a cycle.
    """
    cause = error.__cause__
    if type(error) is RuntimeError and isinstance(cause, StopIteration) and _frame_of(cause) is not None:
        return cause
    return error


def phase_of(error: BaseException, outside: Phase | None, noted: Phase) -> Phase:
    """Return the phase in which an exception was raised: call it in the driver's `except` clause.

    Exceptions from outside the script have the phase `outside`; None stands for `noted`, the phase set by hooks.
    """
    caught = error.__traceback__
    frame = _frame_of(error) or (None if caught is None or caught.tb_next is None else _frame(caught.tb_next))
    phase: Phase | None = outside if frame is None else frame.f_locals["phase"]
    return noted if phase is None else phase


def _frame_of(error: BaseException) -> Any:
    return None if error.__traceback__ is None else _frame(error.__traceback__)


def _frame(entry: Any) -> Any:
    # Only the first frame counts: a script further down belongs to a sampler inside the environment.
    return entry.tb_frame if entry.tb_frame.f_code is trajectory.__code__ else None
