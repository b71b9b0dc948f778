"""The requests to environments: which are open, answered, or await their caller. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamsampler.core.errors import ProtocolError
from streamsampler.stepping.env_states import EnvEvent, EnvState, next_state

_OPEN = (EnvState.RESETTING, EnvState.STEPPING)


class OpenRequests:
    """The state of each environment, and the results that have arrived and are not handed out yet."""

    def __init__(self, n_envs: int) -> None:
        self.states = [EnvState.VOID] * n_envs
        self.arrived: dict[int, None] = {}  # whose results may be handed out, in the order in which they arrived
        self.waiting: set[int] = set()  # whose open request has no answer yet

    def in_states(self, *states: EnvState) -> list[int]:
        """Return the environments in any of some states."""
        return [env_id for env_id, state in enumerate(self.states) if state in states]

    @property
    def n_open(self) -> int:
        """How many requests are open: those without an answer, and those whose results were not handed out."""
        return len(self.waiting) + len(self.arrived)

    def request(self, env_ids: Sequence[int], event: EnvEvent) -> None:
        """Open requests, `SENT` or `RESET`; raise ProtocolError, and change nothing, if one is open or closed."""
        self._change(env_ids, event)
        self.waiting.update(env_ids)

    def _change(self, env_ids: Sequence[int], event: EnvEvent) -> None:
        """Change the states of environments, or raise and change none."""
        states = self.states
        before = {states[env_id] for env_id in env_ids}
        if len(before) == 1:  # quicker, and the most frequent by far
            after = next_state(before.pop(), event)
            if len(env_ids) == len(states):
                states[:] = [after] * len(states)
                return
            for env_id in env_ids:
                states[env_id] = after
            return
        after_of = {state: next_state(state, event) for state in before}
        for env_id in env_ids:
            states[env_id] = after_of[states[env_id]]

    def answer(self, env_ids: Sequence[int]) -> None:
        """Record that the results of open requests have arrived; raise ProtocolError if there is no such request."""
        if not self.waiting.issuperset(env_ids):
            unknown = sorted(set(env_ids) - self.waiting)
            raise ProtocolError(f"environments {unknown} answered, and have no request without an answer")
        self.waiting.difference_update(env_ids)
        self.arrived.update(dict.fromkeys(env_ids))

    def close_requests(self, env_ids: Sequence[int], event: EnvEvent) -> None:
        """Close requests whose results the caller receives, or that are discarded.

        Raise ProtocolError, and change nothing, where a result has not arrived, or the event is not that of its
        request.
        """
        arrived = self.arrived
        if missing := [env_id for env_id in env_ids if env_id not in arrived]:
            raise ProtocolError(f"environments {missing} have no result to hand out")
        self._close_requests(env_ids, event)

    def _close_requests(self, env_ids: Sequence[int], event: EnvEvent) -> None:
        self._change(env_ids, event)
        if len(env_ids) == len(self.arrived):
            self.arrived.clear()
            return
        for env_id in env_ids:
            del self.arrived[env_id]

    def fail(self, env_ids: Iterable[int]) -> None:
        """Record that environments failed: whatever they were asked for has no result any more."""
        for env_id in env_ids:
            if self.states[env_id] is not EnvState.FAILED:
                self.states[env_id] = next_state(self.states[env_id], EnvEvent.BROKE)
            self.waiting.discard(env_id)
            self.arrived.pop(env_id, None)

    def mend(self) -> None:
        """Let the accounts agree where a call was interrupted: what is open, and has not arrived, is waited for."""
        opened = set(self.in_states(*_OPEN))
        self.arrived = {env_id: None for env_id in self.arrived if env_id in opened}
        self.waiting = opened - self.arrived.keys()

    def close(self) -> None:
        """Close all environments, and forget what was open."""
        self.states = [
            state if state is EnvState.CLOSED else next_state(state, EnvEvent.CLOSED) for state in self.states
        ]
        self.waiting.clear()
        self.arrived.clear()
