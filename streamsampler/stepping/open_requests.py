"""Track requests to environments: open, answered, or waiting for their caller. Pure: no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from streamsampler.core.errors import ProtocolError
from streamsampler.stepping.env_states import EnvEvent, EnvState, next_state

_OPEN = (EnvState.RESETTING, EnvState.STEPPING)


class OpenRequests:
    """The state of each environment, and the arrived results not yet received."""

    def __init__(self, n_envs: int) -> None:
        self.states = [EnvState.VOID] * n_envs
        self.arrived: dict[int, None] = {}  # environments with an arrived result, in the order of arrival
        self.waiting: set[int] = set()  # environments with an unanswered request

    def in_states(self, *states: EnvState) -> list[int]:
        return [env_id for env_id, state in enumerate(self.states) if state in states]

    @property
    def n_open(self) -> int:
        """How many requests are unanswered, or answered and not yet received."""
        return len(self.waiting) + len(self.arrived)

    def request(self, env_ids: Sequence[int], event: EnvEvent) -> None:
        """Open requests, `SENT` or `RESET`; raise ProtocolError and open none if a state forbids it."""
        self._change(env_ids, event)
        self.waiting.update(env_ids)

    def _change(self, env_ids: Sequence[int], event: EnvEvent) -> None:
        states = self.states
        before = {states[env_id] for env_id in env_ids}
        if len(before) == 1:  # the most frequent by far, and quicker this way
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
        """Record arrived results; raise ProtocolError without an open request."""
        if not self.waiting.issuperset(env_ids):
            unknown = sorted(set(env_ids) - self.waiting)
            raise ProtocolError(f"environments {unknown} answered without an open request")
        self.waiting.difference_update(env_ids)
        self.arrived.update(dict.fromkeys(env_ids))

    def close_requests(self, env_ids: Sequence[int], event: EnvEvent) -> None:
        """Close requests, as results are received or discarded; all of them, or raise ProtocolError."""
        arrived = self.arrived
        if missing := [env_id for env_id in env_ids if env_id not in arrived]:
            raise ProtocolError(f"environments {missing} have no result to receive")
        self._close_requests(env_ids, event)

    def _close_requests(self, env_ids: Sequence[int], event: EnvEvent) -> None:
        self._change(env_ids, event)
        if len(env_ids) == len(self.arrived):
            self.arrived.clear()
            return
        for env_id in env_ids:
            del self.arrived[env_id]

    def fail(self, env_ids: Iterable[int]) -> None:
        for env_id in env_ids:
            if self.states[env_id] is not EnvState.FAILED:
                self.states[env_id] = next_state(self.states[env_id], EnvEvent.BROKE)
            self.waiting.discard(env_id)
            self.arrived.pop(env_id, None)

    def resynchronize(self) -> None:
        """After an interruption, wait for all open requests without a result."""
        opened = set(self.in_states(*_OPEN))
        self.arrived = {env_id: None for env_id in self.arrived if env_id in opened}
        self.waiting = opened - self.arrived.keys()

    def close(self) -> None:
        self.states = [
            state if state is EnvState.CLOSED else next_state(state, EnvEvent.CLOSED) for state in self.states
        ]
        self.waiting.clear()
        self.arrived.clear()
