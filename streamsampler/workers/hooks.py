"""Call hooks in workers: user code at the start and the end of trajectories, and at each timestep.

Hooks are an object with any of `on_environment_created`, `on_trajectory_start`, `on_timestep`, `on_trajectory_end` and
`on_trajectory_lost`. Without hooks and `drop_if` the loop makes no calls. See
`streamsampler/docs/hooks-and-filters.md`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from streamsampler.core.awaiting import has_coroutines
from streamsampler.core.errors import UsageError
from streamsampler.core.serialization import Payload, dumps, loads
from streamsampler.data.aggregation import HOW_METRICS
from streamsampler.environments.updates import AnyEnv
from streamsampler.protocol.messages import Phase
from streamsampler.workers.base import AbnormalTrajectoryError, Worker
from streamsampler.workers.explain import summary_of
from streamsampler.workers.restoring import own_copy
from streamsampler.workers.trajectory_context import TrajectoryContext


def with_copies(context: TrajectoryContext) -> TrajectoryContext:
    """Replace a context's values by copies: environments may reuse the arrays, and hooks may modify theirs."""
    context.observation, context.action = own_copy(context.observation), own_copy(context.action)
    if context.info:
        context.info = own_copy(context.info)
    if context.agent_info:
        context.agent_info = {**context.agent_info}  # a shallow copy: to copy the arrays would cost 1 µs
    return context


_LOG = logging.getLogger("streamsampler")
CREATED = "on_environment_created"
_NAMES = (CREATED, "on_trajectory_start", "on_timestep", "on_trajectory_end", "on_trajectory_lost")


@dataclass(frozen=True)
class Hooks:
    """Holds a sampler's arguments `hooks` and `drop_if`, pickled; `spared` is exempt from `drop_if`."""

    hooks: Payload | None = None
    drop_if: Payload | None = None
    spared: int | None = None

    def sparing(self, index: int) -> Hooks:
        """Return a copy which exempts a trajectory from `drop_if`."""
        return replace(self, spared=index)


def pickled_hooks(hooks: Any, drop_if: Any) -> Hooks | None:
    if hooks is not None:
        _check_hooks(hooks)
    if drop_if is not None and not callable(drop_if):
        raise UsageError(f"drop_if must be a function of an info, got {drop_if!r}")
    if hooks is None and drop_if is None:
        return None
    return Hooks(_pickled(hooks, "hooks"), _pickled(drop_if, "drop_if"))


def _check_hooks(hooks: Any) -> None:
    if isinstance(hooks, type):
        raise UsageError(f"hooks must be an object, got the class {hooks.__qualname__}: pass {hooks.__qualname__}(…)")
    own = [name for name in dir(hooks) if name.startswith("on_") and callable(getattr(hooks, name))]
    if not own or not set(own) <= set(_NAMES):
        which = f"it has {', '.join(own)}" if own else "it has none of them"
        raise UsageError(f"hooks must be an object with methods {', '.join(_NAMES)}, or some of them; {which}")
    if has_coroutines(hooks, *own):
        raise UsageError("hooks are not awaited: define their methods with def instead of async def")
    check_aggregation(getattr(hooks, "aggregation", {}))


def check_aggregation(how: Any) -> None:
    """Raise if the hooks' aggregation of metrics is not a dict of known words."""
    if not isinstance(how, Mapping):
        raise UsageError(f"the hooks' aggregation must be a dict from metric names to words, got {how!r}")
    for name, word in how.items():
        if word not in HOW_METRICS:
            raise UsageError(f"the metric {name!r} has the aggregation {word!r}: use one of {', '.join(HOW_METRICS)}")


def _pickled(given: Any, what: str) -> Payload | None:
    if given is None:
        return None
    payload = dumps(given, what)
    return Payload(payload.data, tuple(map(bytes, payload.buffers)))


class HookCaller:
    """Calls its own copies of a worker's hooks and `drop_if`.

    Attributes:
        aggregation: Aggregation of metrics over a batch, by name; the default is the mean.
    """

    def __init__(self, worker: Worker, given: Hooks) -> None:
        self._worker, self._spared = worker, given.spared
        hooks = None if given.hooks is None else loads(given.hooks)
        self._drop_if: Callable[[dict[str, Any]], Any] | None = None if given.drop_if is None else loads(given.drop_if)
        created, start, timestep, end, lost = (getattr(hooks, name, None) for name in _NAMES)
        self._on_created: Callable[[Any, int], Any] | None = created
        self._on_start, self._on_timestep, self._on_end, self._on_lost = start, timestep, end, lost
        self.aggregation: Mapping[str, str] = getattr(hooks, "aggregation", {})

    def created(self, env: AnyEnv) -> None:
        if self._on_created is not None:
            phase = self._worker.phase
            self._worker.enter(Phase.HOOK_CREATED)
            self._on_created(env, self._worker.context.worker_number)
            self._worker.enter(phase)

    def start(self, context: TrajectoryContext) -> None:
        if self._on_start is not None:
            self._worker.enter(Phase.HOOK_START)
            self._on_start(with_copies(context))
        self._apply_drop_if(context)

    def timestep(self, context: TrajectoryContext) -> None:
        if self._on_timestep is not None:
            self._worker.enter(Phase.HOOK_TIMESTEP)
            self._on_timestep(with_copies(context))
        self._apply_drop_if(context)

    def end(self, context: TrajectoryContext) -> None:
        if self._on_end is not None:
            self._worker.enter(Phase.HOOK_END)
            self._on_end(with_copies(context))

    def lost(self, context: TrajectoryContext, error: BaseException) -> None:
        """Call the hook of lost trajectories; its own exception becomes a note of the error."""
        if self._on_lost is None or not isinstance(error, Exception | SystemExit):
            return
        phase = self._worker.phase
        self._worker.enter(Phase.HOOK_LOST)
        try:
            self._on_lost(with_copies(context), error)
        except (Exception, SystemExit) as further:
            note = f"on_trajectory_lost raised as well: {summary_of(further)}"
            error.add_note(note)
            _LOG.warning("%s, in trajectory %d", note, context.index)
        self._worker.enter(phase)

    def _apply_drop_if(self, context: TrajectoryContext) -> None:
        if self._drop_if is None or context.index == self._spared:
            return
        self._worker.enter(Phase.DROP_IF)
        if self._drop_if(context.info):
            when = f"the info of timestep {context.timestep - 1}" if context.timestep else "the reset's info"
            raise AbnormalTrajectoryError(f"drop_if returned true for {when}")


def raises_all(kinds: tuple[str, ...]) -> bool:  # noqa: ARG001 - it is a `WorkerContext.drop_unless`
    """Return true: exceptions of user code are raised, and only `drop_if` drops trajectories."""
    return True
