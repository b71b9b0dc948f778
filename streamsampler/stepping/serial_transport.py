"""Make and step a manager's environments in the caller's process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from streamsampler.core.errors import SerializationError
from streamsampler.core.serialization import Payload, dumps, loads
from streamsampler.core.timing import not_measuring
from streamsampler.environments.updates import EnvUpdate, NewEnvUpdate, SpecEnvUpdate
from streamsampler.protocol.losses import Losses, Policy
from streamsampler.stepping.env_messages import EnvReport, EnvsFailed, RequestsDone, Restored
from streamsampler.stepping.env_states import Autoreset
from streamsampler.stepping.env_times import WorkerReport
from streamsampler.stepping.episode_server import EpisodeServer
from streamsampler.stepping.failures import EnvErrors
from streamsampler.stepping.options import Updates
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.stepping.rows import EnvSpaces, Rows
from streamsampler.stepping.server import Answers
from streamsampler.stepping.transport import Transport, warn_of_unclosed
from streamsampler.workers.explain import summary_of
from streamsampler.workers.restoring import own_copy


class PristineEnvs:
    """Makes environments as they were before the first was made: an environment that was passed is used up by then."""

    def __init__(self, updates: Updates) -> None:
        self._updates = {
            env_id: update if isinstance(update, SpecEnvUpdate | NewEnvUpdate) else self._pickled(update)
            for env_id, update in updates.items()
        }

    @staticmethod
    def _pickled(update: EnvUpdate) -> Payload | SerializationError:
        try:
            return dumps(update, "the environment")
        except SerializationError as error:
            return error

    def __call__(self, env_id: int) -> EnvUpdate:
        update = self._updates[env_id]
        if isinstance(update, SerializationError):
            raise SerializationError(f"environment {env_id} cannot be made again: {update}") from update
        return loads(update) if isinstance(update, Payload) else update


class SerialTransport(Transport, Answers):
    """Calls the server of environments in this process; steps run when they are requested."""

    failures = (Exception, SystemExit)
    are_awaited = False

    def __init__(
        self, updates: Updates, fresh: PristineEnvs, autoreset: Autoreset, policy: Policy, *, own_generators: bool
    ) -> None:
        self.losses = Losses(policy)
        self._errors = EnvErrors(policy, [list(updates)])
        # The server writes its progress here: nobody reads it.
        row: Any = SimpleNamespace(words=[0, 0, 0], timesteps_word=0, trajectory_word=1, phase_word=2)
        self._server = EpisodeServer(updates, 0, row, autoreset, own_generators=own_generators, is_shared=True)
        self._server.on_draws = self._warn_of_draws
        self._server.fresh = fresh
        self._events: list[EnvReport] = []
        self._infos: dict[int, dict[str, Any]] = {}
        self._at_work: Sequence[int] = ()

    def start(self) -> None:
        outside = not_measuring()
        with outside, outside:
            self.spaces = EnvSpaces(self._server.make())
        self.rows = self._server.rows = Rows(self.spaces, np.zeros)

    def step(self, env_ids: Sequence[int], *, together: bool = False) -> None:  # noqa: ARG002 - always together
        self._work(env_ids, lambda: self._server.step(env_ids, self))

    def reset(self, env_ids: Sequence[int], options: Mapping[int, dict[str, Any] | None]) -> None:
        for env_id in env_ids:
            if env_id in options:
                self._server.set_options(env_id, options[env_id])
        self._work(env_ids, lambda: self._server.reset(env_ids, self))

    def keep(self, env_id: int, phase: str, info: dict[str, Any]) -> None:  # noqa: ARG002 - nothing fails later
        self._infos[env_id] = {key: own_copy(value) for key, value in info.items()}  # it may reuse its arrays

    def give(self, env_ids: list[int]) -> None:
        infos, self._infos = self._infos, {}
        self._events.append(RequestsDone(env_ids, infos))

    def fail(self, env_id: int, phase: str, error: BaseException) -> None:
        raised = self._errors.raised(env_id, 0, phase, summary_of(error), error, error)
        self._events.append(EnvsFailed.alone(env_id, raised))

    def _work(self, env_ids: Sequence[int], carry_out: Callable[[], Any]) -> Any:
        """Record which environments run: any other end than an `Exception` interrupts them in the middle."""
        server, self._at_work = self._server, env_ids
        server.generators.accept_states()
        collecting = server.times.collecting()
        try:
            with collecting, collecting:
                result = carry_out()
        except Exception:
            self._at_work = ()
            raise
        self._at_work = ()
        return result

    def interrupted(self, waiting: Collection[int]) -> Sequence[EnvsFailed]:
        answered = {
            env_id for event in self._events if isinstance(event, RequestsDone | EnvsFailed) for env_id in event.env_ids
        }
        lost = sorted({*self._at_work, *waiting} - answered)
        self._server.end_episodes(lost)
        error = InterruptedError("a call was interrupted in the middle")
        return [EnvsFailed([env_id], error, 0) for env_id in lost]

    def forget_options(self, env_ids: Sequence[int]) -> dict[int, dict[str, Any] | None]:
        return {env_id: self._server.forget_options(env_id) for env_id in env_ids}

    def restore(self, orders: Sequence[RestoreOrder]) -> None:
        self._server.generators.accept_states()
        for order in orders:
            try:
                why_not = self._server.restore(order)
            except (Exception, SystemExit) as error:
                self.fail(order.env_id, "reset", error)
                continue
            n_timesteps = None if order.seed is None else order.n_timesteps
            self._events.append(Restored(order.env_id, n_timesteps, why_not))

    def release(self, env_ids: Sequence[int]) -> None:
        self._server.not_restored.difference_update(env_ids)

    def collect(self, timeout: float | None, awaited: Sequence[int] = ()) -> Sequence[EnvReport]:  # noqa: ARG002
        if not self._events and timeout:
            threading.Event().wait(timeout)  # only retries are due
        self.in_critical_section = True
        events, self._events = self._events, []
        return events

    def receive_round(self, n: int) -> Mapping[int, dict[str, Any]] | None:
        if len(self._events) != 1:
            return None
        event = self._events[0]
        if not isinstance(event, RequestsDone) or len(event.env_ids) != n:
            return None
        self.in_critical_section, self._events = True, []
        return event.infos

    def request(self, env_ids: Sequence[int], kind: str, name: str, arguments: Sequence[Any]) -> list[Any]:
        tried: dict[int, bool] = {}
        self.tried = tried

        def carry_out() -> list[Any]:
            values = []
            for env_id, argument in zip(env_ids, arguments, strict=True):
                tried[env_id] = True
                try:
                    values.append(self._server.request(env_id, kind, name, argument))
                except SystemExit as error:  # it would end the caller's program
                    raise self._errors.raised(env_id, 0, name, summary_of(error), error, error) from error
                tried[env_id] = False
            return values

        answers: list[Any] = self._work(env_ids, carry_out)
        return answers

    def reports(self) -> Sequence[WorkerReport]:
        return [self._server.times.take()]

    def close(self) -> None:
        warn_of_unclosed({env_id: summary_of(error) for env_id, error in self._server.close_all().items()})
