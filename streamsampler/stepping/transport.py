"""What a manager needs of the place where its environments live, and the messages to worker processes."""

from __future__ import annotations

import abc
import functools
import logging
import os
import pickle
import struct
import time
import traceback
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from streamsampler.core.by_value import dumps_by_value
from streamsampler.core.errors import ActionError, RemoteTraceback, RolloutError, SpentQuota, WorkerError
from streamsampler.core.serialization import dumps
from streamsampler.protocol.faults import Hang
from streamsampler.protocol.messages import Phase
from streamsampler.protocol.restarts import (
    Incident,
    Likeness,
    Losses,
    Policy,
    cause_of_exception,
    unready,
    was_killed,
)
from streamsampler.samplers.failures import loss_error
from streamsampler.stepping.ledger import WorkerReport
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.stepping.rows import EnvSpaces, Rows

# ----------------------------------------------------------------------
# Messages between the parent and a worker: a length, a kind, and bytes; whole, or not at all.


_HEADER = struct.Struct("<QB")
_READ_BYTES = 1 << 16

IDS, PICKLE, LOG, COPY, TOGETHER = range(5)
"""Kinds of messages: numbers of environments; anything else; log records; that the writer is a forked copy; numbers of
environments whose results are wanted together."""

COPY_FRAME = _HEADER.pack(0, COPY)
"""The message of a forked copy."""


def ids_frame(env_ids: Sequence[int], kind: int = IDS) -> bytes:
    """Return a message with numbers of environments: to step them, or that their requests were carried out."""
    return _ids_frame(tuple(env_ids), kind)


@functools.lru_cache(256)
def _ids_frame(env_ids: tuple[int, ...], kind: int) -> bytes:
    return _HEADER.pack(4 * len(env_ids), kind) + np.array(env_ids, np.uint32).tobytes()


def ids_in(data: bytes) -> list[int]:
    """Return the numbers in a message of the kind `IDS`."""
    return list(_ids_in(data))


@functools.lru_cache(256)
def _ids_in(data: bytes) -> tuple[int, ...]:
    return tuple(np.frombuffer(data, np.uint32).tolist())


def pickle_frame(message: Any) -> bytes:
    """Return a message with anything that can be pickled."""
    data = pickle.dumps(message, protocol=5)
    return _HEADER.pack(len(data), PICKLE) + data


def log_frame(records: bytes) -> bytes:
    """Return a message with what `RecordKeeper.take` returned."""
    return _HEADER.pack(len(records), LOG) + records


def request_frame(env_ids: Sequence[int], kind: str, name: str, arguments: Sequence[Any]) -> bytes:
    """Return a message that asks a worker for what is no step; what a user passes may be of the user's own classes.

    Raises:
        SerializationError: An argument cannot be pickled.
    """
    return pickle_frame(("request", list(env_ids), kind, name, dumps(list(arguments), f"what {name} gets").owned()))


def pickled(value: Any) -> bytes:
    """Return a pickle of what an environment returned, by value where it is of the caller's script."""
    try:
        return pickle.dumps(value, protocol=5)
    except Exception:
        return dumps_by_value(value)


def split(frame: bytes) -> tuple[int, bytes]:
    """Return the kind and the bytes of a message.

    Raises:
        ValueError: It is none.
    """
    size, kind = _HEADER.unpack_from(frame)
    if len(frame) != _HEADER.size + size:
        raise ValueError(f"a message of {size} bytes has {len(frame)}")
    return kind, frame[_HEADER.size :]


class FrameReader:
    """Reads messages from a descriptor.

    Args:
        fd: The descriptor.

    Attributes:
        n_read: How many bytes were read.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._data = bytearray()
        self.n_read = 0

    def read(self) -> list[tuple[int, bytes]] | None:
        """Read what is there, and return the messages that are whole; None at the end."""
        try:
            data = os.read(self._fd, _READ_BYTES)
        except BlockingIOError:
            return []
        if not data:
            return None
        self._data += data
        self.n_read += len(data)
        messages = []
        start = 0
        while len(self._data) >= start + _HEADER.size:
            size, kind = _HEADER.unpack_from(self._data, start)
            end = start + _HEADER.size + size
            if len(self._data) < end:
                break
            messages.append((kind, bytes(self._data[start + _HEADER.size : end])))
            start = end
        del self._data[:start]
        return messages


# ----------------------------------------------------------------------


_LOG = logging.getLogger("streamsampler")


class Done(NamedTuple):
    """The requests of some environments were carried out; the results lie in their rows.

    Attributes:
        env_ids: The environments.
        infos: The infos that are not empty, by environment.
    """

    env_ids: Sequence[int]
    infos: Mapping[int, dict[str, Any]] = MappingProxyType({})


@dataclass(frozen=True)
class Broken:
    """Environments failed. They are there again, and are to be reset.

    Attributes:
        env_ids: The environments.
        error: What happened.
        worker_number: The worker that the environments are in.
        culprit: The environment that ran when it happened; None if none did, or it is not known.
        is_new: Whether the environments are to be made again, because their process died or hung.
        is_final: Whether the error is raised in any case.
    """

    env_ids: Sequence[int]
    error: BaseException
    worker_number: int
    culprit: int | None = None
    is_new: bool = False
    is_final: bool = False

    @classmethod
    def alone(cls, env_id: int, error: RolloutError) -> Broken:
        """Return that an environment raised; where the caller's action was wrong, trying it again cannot help."""
        is_final = error.quota is not None or is_of_action(error)
        return cls([env_id], error, error.worker_number, env_id, is_final=is_final)


@dataclass(frozen=True)
class Restored:
    """An environment is what it was, or could not be made that: then it ignores steps until `Transport.give_up`.

    Attributes:
        env_id: The environment.
        n_timesteps: How many timesteps were run for it; None if it had no episode.
        why_not: Why it is not what it was; empty if it is. One that had no episode ignores no steps.
    """

    env_id: int
    n_timesteps: int | None
    why_not: str


def is_of_action(error: BaseException) -> bool:
    """Whether an environment raised because its caller's action was outside its space."""
    return isinstance(error, RolloutError) and isinstance(error.original, ActionError)


class UnansweredError(Exception):
    """Workers were lost while their environments carried out what is no step.

    Attributes:
        error: What happened to the first one.
        values: What the other environments returned.
    """

    def __init__(self, error: WorkerError, values: dict[int, Any]) -> None:
        super().__init__(str(error))
        self.error = error
        self.values = values


Event: TypeAlias = Done | Broken | Restored
"""What a transport reports."""


class Transport(abc.ABC):
    """Carries requests to environments, and their results back.

    Attributes:
        rows: The rows of all environments, after `start`.
        spaces: The spaces of each environment, after `start`.
        setbacks: Counts failures and losses against the quotas.
        in_hand: Whether a call is at something that must not be left half done: what was read is not recorded yet, or
            what is recorded is not sent. It stays True where an unexpected exception, such as Ctrl-C, ends the
            call there: then `interrupted` is to be called before anything else.
        tried: Where a request raised, which environments it reached, and whether it raised in each.
    """

    rows: Rows
    spaces: EnvSpaces
    setbacks: Setbacks
    in_hand: bool = False
    tried: Mapping[int, bool] = MappingProxyType({})

    @abc.abstractmethod
    def start(self) -> None:
        """Make the environments."""

    def send_settings(self) -> None:  # noqa: B027 - environments in this process have them
        """Give environments in other processes the settings of this one, where they have changed since."""

    @abc.abstractmethod
    def step(self, env_ids: Sequence[int], *, together: bool = False) -> None:
        """Request a step of each of some environments; their actions lie in their rows.

        Args:
            env_ids: The environments.
            together: Whether nothing goes on before all results are there: then each worker gives all of its own at
                once. Otherwise it gives results that are there before others would be late.
        """

    @abc.abstractmethod
    def reset(self, env_ids: Sequence[int], options: Mapping[int, dict[str, Any] | None]) -> None:
        """Request resets; the seeds lie in the rows.

        Args:
            env_ids: The environments.
            options: Options to remember, by environment; an environment that is not there keeps those that it has.
        """

    @abc.abstractmethod
    def restore(self, orders: Sequence[RestoreOrder]) -> None:
        """Request that environments become what they were; a `Restored` tells whether each is."""

    @abc.abstractmethod
    def give_up(self, env_ids: Sequence[int]) -> None:
        """Let environments take steps again that could not be restored."""

    @abc.abstractmethod
    def forget_options(self, env_ids: Sequence[int]) -> dict[int, dict[str, Any] | None]:
        """Let later resets of environments have no options; return those that they had."""

    @abc.abstractmethod
    def interrupted(self, waiting: Collection[int]) -> Sequence[Broken]:
        """Give up whatever may be half done; return which environments are lost by it.

        Args:
            waiting: Environments whose requests have no answer yet.
        """

    @abc.abstractmethod
    def collect(self, timeout: float | None, awaited: Sequence[int] = ()) -> Sequence[Event]:
        """Return what has happened since the last call; wait for it if it is nothing yet.

        `in_hand` is False while it waits, and True when it returns: the caller sets it to False when all is recorded.

        Args:
            timeout: Seconds to wait at most; None for any time.
            awaited: Environments without whose results nothing goes on, in their order: others need not end the wait.
        """

    @abc.abstractmethod
    def take_round(self, n: int) -> Mapping[int, dict[str, Any]] | None:
        """Wait for the results of a step of all n environments, which was requested at once; return their infos.

        `in_hand` is as in `collect`.

        Returns:
            None where something else has happened before all are there: `collect` returns all of it then.
        """

    @abc.abstractmethod
    def request(self, env_ids: Sequence[int], kind: str, name: str, arguments: Sequence[Any]) -> list[Any]:
        """Carry out what is no step, see `EnvServer.request`, while no request of these environments is open.

        Raises:
            UnansweredError: Workers were lost meanwhile.
        """

    @abc.abstractmethod
    def reports(self) -> Sequence[WorkerReport]:
        """Return what workers have said of their time since the last call; ask those that have nothing to do."""

    @property
    def is_ours(self) -> bool:
        """Whether the environments can be used in this process."""
        return True

    @abc.abstractmethod
    def close(self) -> None:
        """Close the environments; may be repeated."""


def warn_of_draws(env_id: int, name: str, seconds: float) -> None:
    """Log that an environment draws from a global generator, which others in its process may draw from, too."""
    _LOG.warning(
        "environment %d (%s) draws from a global generator (random, numpy.random or torch), which the environments of "
        "a process share: its earlier episodes may have depended on the others. From now on it has states of its own, "
        "which takes %.2f ms for each of its calls; others that draw are treated alike. Let it draw from "
        "self.np_random, or pass own_generators=True, which does so from the start",
        env_id, name, 1000 * seconds,
    )  # fmt: skip


def warn_of_unclosed(env_id: int, summary: str) -> None:
    """Log that an environment raised while it was closed, when no call is left that could raise it."""
    _LOG.warning("environment %d raised while it was closed: %s", env_id, summary)


# ----------------------------------------------------------------------
# The errors of environments that failed, counted against the quotas. Pure: no process is touched.


class Setbacks:
    """Makes the errors of environments that raised and of workers that were lost, and counts them as a sampler does.

    Args:
        policy: The quotas, and which exceptions count.
        envs_of: The environments of each worker.
    """

    def __init__(self, policy: Policy, envs_of: Sequence[Sequence[int]]) -> None:
        self._policy = policy
        self._envs_of = envs_of
        self._losses = Losses(policy, len(envs_of))
        self._began = time.monotonic()

    def raised(
        self, env_id: int, worker: int, phase: str, summary: str, cause: BaseException, original: BaseException | None
    ) -> RolloutError:
        """Return the error of an environment that raised.

        Args:
            env_id: The environment.
            worker: The worker that it is in.
            phase: What it was doing.
            summary: The exception in one line.
            cause: The exception, or its traceback as text.
            original: The exception, where it is known.
        """
        what = f"environment {env_id} raised in {phase}, in worker {worker}: {summary}"
        quota: SpentQuota | None = None
        incidents: tuple[Incident, ...] = ()
        if self._policy.restart_on and not isinstance(original, ActionError):
            text = cause.text if isinstance(cause, RemoteTraceback) else "".join(traceback.format_exception(cause))
            likeness = Likeness(_name(env_id), (phase, *cause_of_exception(summary.partition(":")[0], text)))
            incident = Incident(worker, f"raised in environment {env_id}", _phase(phase), *self._when)
            quota, incidents = self._count(replace(incident, likeness=likeness))
        error = RolloutError(
            what, worker_number=worker, phase=phase, trajectory=None, original=original, quota=quota,
            incidents=incidents,
        )  # fmt: skip
        error.__cause__ = cause
        return error

    def died(self, worker: int, exitcode: int | None, what: str, phase: Phase, env_id: int | None) -> WorkerError:
        """Return the error of a worker that died: what happened, and what it was doing with which environment."""
        likeness = self._likeness(worker, phase, what, env_id, by_chance=was_killed(exitcode))
        return self._lost(Incident(worker, what, phase, *self._when, exitcode=exitcode, likeness=likeness), env_id)

    def hung(self, worker: int, hang: Hang, phase: Phase, env_id: int | None) -> WorkerError:
        """Return the error of a worker that hung, with its Python stacks."""
        what = f"made no progress for {hang.seconds:.3g} s, and was killed,"
        likeness = self._likeness(worker, phase, hang.stack, env_id, by_chance='File "' not in hang.stack)
        return self._lost(
            Incident(worker, what, phase, *self._when, stack=hang.stack, hung=True, likeness=likeness), env_id
        )

    def record_success(self, env_ids: Sequence[int]) -> None:
        """Forget the equal failures of environments that did what they were asked."""
        if self._losses.has_equal:
            for env_id in env_ids:
                self._losses.forget(_name(env_id))

    def became_ready(self, worker: int) -> None:
        """Forget the equal losses of a worker that has made its environments now."""
        self._losses.forget(unready(worker))

    @staticmethod
    def _likeness(
        worker: int, phase: Phase, cause: str, env_id: int | None, *, by_chance: bool = False
    ) -> Likeness | None:
        if phase is Phase.ENV_CONSTRUCTION:
            return Likeness(unready(worker), cause, by_chance)
        return None if env_id is None else Likeness(_name(env_id), (phase, cause), by_chance)

    @property
    def _when(self) -> tuple[None, None, float]:
        return None, None, time.monotonic() - self._began

    def _count(self, incident: Incident) -> tuple[SpentQuota | None, tuple[Incident, ...]]:
        quota = self._losses.count(incident)
        return quota, self._losses.history() if quota is not None else ()

    def _lost(self, incident: Incident, env_id: int | None) -> WorkerError:
        which = "" if env_id is None else f" {env_id}"
        envs = ", ".join(map(str, self._envs_of[incident.worker]))
        return loss_error(incident, *self._count(incident), f"{incident}{which}; in it are environments {envs}")


def _name(env_id: int) -> str:
    return f"environment {env_id}"


def _phase(word: str) -> Phase:
    return Phase.RESET if word == "reset" else Phase.STEP if word == "step" else Phase.ENV_CONSTRUCTION
