"""Run a worker process with environments: receive messages, serve them, answer."""

from __future__ import annotations

import contextlib
import os
import pickle
import secrets
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from time import perf_counter
from typing import Any, NoReturn

from streamsampler.core.by_value import dumps_by_value
from streamsampler.core.serialization import Payload, dumps, loads
from streamsampler.engines.process_setup import StartedProcess
from streamsampler.stepping import episode_server, rollout_server  # noqa: F401 - before workers are forked
from streamsampler.stepping.carried_values import packed_result, put_actions
from streamsampler.stepping.frames import IDS, TOGETHER, ids_frame, ids_in, log_frame, pickle_frame
from streamsampler.stepping.rows import EnvSpaces, Rows
from streamsampler.stepping.server import Answers, EnvServer
from streamsampler.workers.explain import summary_of, traceback_of
from streamsampler.workers.generators import set_states

_REPORT_SECONDS = 1.0
"""How often a busy worker reports its times."""


class EnvChannel(ABC):
    """A worker's connection to its manager."""

    @abstractmethod
    def read(self) -> list[tuple[int, bytes]] | None:
        """Wait for messages; return the kind and the bytes of each, None at the end."""

    @abstractmethod
    def write(self, frame: bytes) -> None: ...

    @abstractmethod
    def open_rows(self, spaces: EnvSpaces) -> Rows: ...

    @abstractmethod
    def report_copy(self) -> None:
        """Report, if possible, that this process is a forked copy of the worker."""


def new_worker(begun: StartedProcess, channel: EnvChannel) -> EnvWorker:
    """Return a worker; its setup has the pickled server of its environments, and log levels."""
    setup, levels = begun.setup
    number = begun.number
    begun.keeper.set_levels(levels)
    n_modules = len(sys.modules)
    updates, new_server = loads(setup.make_worker)
    begun.settings.loaded(n_modules)
    # Forked workers have the parent's generators: they would all draw the same, and so would a restored environment.
    set_states(secrets.randbits(63), None)
    server: EnvServer = new_server(updates[number], number, begun.row)
    server.fresh = lambda env_id: loads(setup.make_worker)[0][number][env_id]
    return EnvWorker(server, channel, begun)


class EnvWorker(Answers):
    """A worker: carries out messages, and answers."""

    failures = (BaseException,)  # user code may raise anything, even SystemExit
    are_awaited = True

    def __init__(self, server: EnvServer, channel: EnvChannel, begun: StartedProcess) -> None:
        self._server, self._channel = server, channel
        self._keeper, self._threads, self._settings = begun.keeper, begun.threads, begun.settings
        self._pid = os.getpid()
        self._infos: dict[int, tuple[str, bytes]] = {}
        server.on_draws = self._report_draws
        self._messages: dict[str, Callable[..., None]] = {
            "rows": self._open_rows,
            "actions": self._take_actions,
            "step": self._steps_with,
            "options": self._set_options,
            "settings": self._set_settings,
            "reset": self._resets,
            "restore": self._restore,
            "ended": self._server.end_episodes,
            "release": self._server.not_restored.difference_update,
            "request": self._request,
            "report": self._report,
        }

    def run(self) -> None:
        if not self.make():
            return
        times = self._server.times
        with times.collecting():
            while (messages := self._channel.read()) is not None:
                began = perf_counter()
                for kind, data in messages:
                    if not self.carry_out(kind, data):
                        self._close()
                        return
                times.busy_seconds += perf_counter() - began
                if times.timesteps and times.seconds > _REPORT_SECONDS:
                    self._report()

    def make(self) -> bool:
        try:
            spaces = dumps(self._server.make(), "the spaces of an environment").owned()
        except BaseException as error:  # user code may raise anything, even SystemExit
            self._write(pickle_frame(("failed", self._server.making, "its construction", *_about(error))))
            return False
        self._threads.hold()
        self._keeper.apply()  # modules imported meanwhile may have set levels of their own
        self._write(pickle_frame(("spaces", spaces)))
        return True

    def _close(self) -> None:
        if raised := self._server.close_all():
            self._write(pickle_frame(("unclosed", {env_id: summary_of(it) for env_id, it in raised.items()})))

    def carry_out(self, kind: int, data: bytes) -> bool:
        """Carry out a message; return False after the last."""
        if kind in (IDS, TOGETHER):
            self._steps(list(ids_in(data)), together=kind == TOGETHER)
            return True
        what, *arguments = pickle.loads(data)
        if what == "exit":
            return False
        self._messages[what](*arguments)
        return True

    def _open_rows(self, payload: Payload) -> None:
        spaces, slots, options, parameters, settings = loads(payload)
        self._set_settings(settings)
        rows = self._server.rows = self._channel.open_rows(spaces)
        if not rows.is_shared:
            rows.slots[:] = slots
        self.bring_all = rows.observations_are_carried
        for env_id, given in options.items():
            self._server.set_options(env_id, given)
        for env_id, of_one in parameters.items():
            self._server.set_parameters(env_id, of_one)

    def _set_settings(self, payload: Payload) -> None:
        settings, levels = loads(payload)
        self._settings.apply(settings)
        self._keeper.set_levels(levels)

    def _set_options(self, options: Payload) -> None:
        for env_id, of_one in loads(options).items():
            self._server.set_options(env_id, of_one)

    def _steps(self, env_ids: list[int], *, together: bool) -> None:
        self.are_awaited = not together
        self._server.step(env_ids, self)
        self._server.rest()

    def _take_actions(self, actions: Any) -> None:
        self._server.take_actions(loads(actions) if isinstance(actions, Payload) else actions)

    def _steps_with(self, env_ids: list[int], carried: Payload, together: bool) -> None:
        put_actions(self._server.rows, env_ids, carried)
        self._steps(env_ids, together=together)

    def _resets(self, env_ids: list[int], options: Payload, seeds: list[int] | None) -> None:
        self._set_options(options)
        self._server.rows.put_carried_seeds(env_ids, seeds)
        self._server.reset(env_ids, self)
        self._server.rest()

    def _restore(self, orders: Payload) -> None:
        for order in loads(orders):
            try:
                why_not = self._server.restore(order)
            except BaseException as error:  # as in `make`
                self.fail(order.env_id, "reset", error)
                continue
            n_timesteps = None if order.seed is None else order.n_timesteps
            self._write(pickle_frame(("restored", order.env_id, n_timesteps, why_not)))
        self._server.rest()

    def _report_draws(self, *about: Any) -> None:
        self._write(pickle_frame(("draws", *about)))

    def _report(self) -> None:
        self._write(pickle_frame(("report", tuple(self._server.times.take()))))

    def keep(self, env_id: int, phase: str, info: dict[str, Any]) -> None:
        """Pickle the info at once: the environment may reuse its arrays."""
        self._infos[env_id] = phase, packed_result(self._server.rows, env_id, info)

    def give(self, env_ids: list[int]) -> None:
        frame = pickle_frame(("done", env_ids, self._infos)) if self._infos else ids_frame(tuple(env_ids))
        self._infos = {}
        self._write(frame)

    def fail(self, env_id: int, phase: str, error: BaseException) -> None:
        self._write(pickle_frame(("failed", env_id, phase, *_about(error))))

    def _request(self, env_ids: list[int], kind: str, name: str, payload: Payload) -> None:
        tried: dict[int, bool] = {}
        values = []
        try:
            for env_id, argument in zip(env_ids, loads(payload), strict=True):
                tried[env_id] = True
                values.append(self._server.request(env_id, kind, name, argument))
                tried[env_id] = False
            answer = pickle_frame(("values", dumps(values, f"the result of {name}").owned()))
        except BaseException as error:  # as in `make`
            answer = pickle_frame(("raised", tried, *_about(error)))
        self._server.rest()
        self._write(answer)

    def _write(self, data: bytes) -> None:
        if os.getpid() != self._pid:
            self._refuse()
        self.send_records()
        self._channel.write(data)

    def send_records(self) -> None:
        if records := self._keeper.take():
            self._channel.write(log_frame(records))

    def _refuse(self) -> NoReturn:
        """End this process, a forked copy of the worker: both would read and answer."""
        with contextlib.suppress(OSError):
            self._channel.report_copy()
        os._exit(1)


def _about(error: BaseException) -> tuple[str, str, bytes | None]:
    return summary_of(error), traceback_of(error), _pickled_error(error)


def _pickled_error(error: BaseException) -> bytes | None:
    """Pickle an exception, by value if its class cannot be imported; return None if pickling fails."""
    for dumps_error in (pickle.dumps, dumps_by_value):
        with contextlib.suppress(Exception):  # any error: this runs user code
            data: bytes = dumps_error(error)
            pickle.loads(data)
            return data
    return None
