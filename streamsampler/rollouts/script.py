"""The script of a trajectory: reset, record, step, record, until it ends.

A script is a generator. It yields an observation wherever an action is needed, and receives the action. It knows the
environment, the recorder and the hooks. Its driver knows the agent: it asks for actions and records them, seeds the
global generators, shows progress, and ends the record.

Where a reset or a step is pending, because the environment is in another process, the script yields first what `reset`
or `step` returned, and receives the result; a driver throws what the environment raised.

- A suspended script is an episode that goes on. `close()` abandons it.
- `throw(Cut())` ends a part of it: the script yields an `End`, and goes on when it is sent the next part's `Binding`.
- To restore an episode is to drive a new script with the actions that were recorded.
- An exception closes a script: its trajectory can only be run again.
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
    """Ends a part of a trajectory at the observation that the next action would be chosen on."""


@dataclass(slots=True)
class End:
    """The end of a trajectory, or of a part of it: no tuple, which a generator returns at twice the cost.

    Attributes:
        observation: The last observation.
        terminated: Whether the environment terminated the trajectory.
        truncated: Whether the environment truncated it.
        limited: Whether it has as many timesteps as it may have.
        info: The info that came with the last observation.
        n_timesteps: The timesteps of the trajectory, in all its parts.
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
    """Sees the timesteps of a script's trajectory."""

    def start(self, observation: Any, info: Any) -> None:
        """See the first observation and the reset's info, which is recorded."""

    def timestep(self, observation: Any, terminated: Any, truncated: Any, info: Any) -> None:
        """See a timestep, which is recorded."""

    def end(self, *, limited: bool) -> None:
        """See the end, before the trajectory's record ends."""


class Binding(NamedTuple):
    """The surroundings of a part, which another call may replace.

    Attributes:
        step: Steps the environment.
        recorder: Records the part.
        hooks: Sees its timesteps; None without hooks.
        waits: Whether results of the environment are pending when `reset` and `step` return.
        outer: The environment's outermost wrappers, if the script does their work and steps the environment below
            them; None otherwise. Only without hooks.
    """

    step: Callable[[Any], Any]
    recorder: RolloutRecorder
    hooks: TrajectoryHooks | None = None
    waits: bool = False
    outer: OuterWrappers | None = None


Script = Generator[Any, Any, End]
"""Yields observations, receives actions, returns the end; see the module."""


def trajectory(  # noqa: C901 - one loop, with everything that it touches in local variables
    reset: Callable[..., Any], binding: Binding, seed: int, begin: Callable[[int], None] | None = None,
    limit: int | None = None,
) -> Script:  # fmt: skip
    """Run one trajectory.

    Everything that the loop touches is in local variables: the package's speed depends on it.

    Args:
        reset: Resets the environment: `reset(seed=seed)`.
        binding: The environment's step, the recorder and the hooks.
        seed: The trajectory's seed.
        begin: Called with the seed after the environment's reset: begins the agent.
        limit: The number of timesteps that the trajectory may have; None for any.

    Yields:
        An observation, which is recorded, for each action; an `End` for each `Cut`, after which it receives a
        `Binding`, records the same observation once more, and yields it.

    Returns:
        The end of the trajectory. The driver ends its record.
    """
    step, recorder, hooks, waits, outer = binding
    phase = _RESET if hooks is None else None  # for `phase_of`; None while others note the phase themselves
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
        # Where the recorder keeps no bytes, no observation has this dtype; where it takes no floats, no reward the
        # class.
        record, encoded = recorder.record_observation, recorder.encoded_observations
        dtype, shape = recorder.observation_dtype, recorder.observation_shape
        rewards, plain = recorder.float_rewards, recorder.reward_class
        try:
            numbers = count(n_timesteps + 1) if last is None else range(n_timesteps + 1, last + 1)
            for n_timesteps in numbers:  # noqa: B007 - the count goes on after a cut
                # Before the agent sees it: the environment may use the array again in its next step, the agent may
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
                # The step of an environment is looked up each time, as a wrapper does: it may replace it.
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
            n_timesteps -= 1  # on the observation that was shown last, no action was chosen
            recorder.forget_observation()
            if outer is not None:
                outer.end(n_timesteps - before)
                last, env, truncated_at = limit, None, None  # the next part may be stepped otherwise
        step, recorder, hooks, waits, outer = yield End(observation, False, False, False, info, n_timesteps)
        recorder.begin({})


def begin_of(result: Any) -> tuple[Any, Any]:
    """Return the observation and the info that an environment's reset returned.

    Raises:
        UsageError: The reset returned something else.
    """
    if not isinstance(result, tuple) or len(result) != 2:
        size = f" of {len(result)}" if isinstance(result, tuple) else ""
        raise UsageError(f"reset must return (observation, info), got {type(result).__name__}{size}")
    return result


# ----------------------------------------------------------------------
# For the driver, in which an exception of a script arrives.


def own_error(error: BaseException) -> BaseException:
    """Return an exception as the environment raised it: Python makes a `RuntimeError` of a script's `StopIteration`.

    A function that raises it keeps it in no variable: exception, traceback and frame would be a cycle, which holds all
    that the frames do, memory of processes too, until the garbage collector comes.

    Args:
        error: An exception that a driver has caught around a script.
    """
    cause = error.__cause__
    if type(error) is RuntimeError and isinstance(cause, StopIteration) and _frame_of(cause) is not None:
        return cause
    return error


def phase_of(error: BaseException, outside: Phase | None, noted: Phase) -> Phase:
    """Return the phase in which an exception was raised.

    Args:
        error: The exception, in the `except` clause of the function that drives the script.
        outside: The phase where it was not raised in the script; None where it is noted.
        noted: The phase that hooks have noted.
    """
    caught = error.__traceback__
    frame = _frame_of(error) or (None if caught is None or caught.tb_next is None else _frame(caught.tb_next))
    phase: Phase | None = outside if frame is None else frame.f_locals["phase"]
    return noted if phase is None else phase


def _frame_of(error: BaseException) -> Any:
    """Return the frame of the script that an exception left first; None if it was another one's."""
    return None if error.__traceback__ is None else _frame(error.__traceback__)


def _frame(entry: Any) -> Any:
    # A script farther down is that of a sampler in the environment.
    return entry.tb_frame if entry.tb_frame.f_code is trajectory.__code__ else None
