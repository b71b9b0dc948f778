"""The errors of environments that failed, counted against the quotas. No process is touched."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence
from dataclasses import replace

from streamsampler.core.errors import ActionError, RemoteTraceback, RolloutError, SpentQuota, WorkerError
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
