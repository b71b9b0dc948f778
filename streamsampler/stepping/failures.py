"""Make the errors of failed environments and lost workers. No process is touched."""

from __future__ import annotations

import time
import traceback
from collections.abc import Sequence

from streamsampler.core.errors import ActionError, RemoteTraceback, RolloutError, SpentQuota, WorkerError
from streamsampler.protocol.faults import Hang
from streamsampler.protocol.losses import Loss, Losses, LossKind, Policy, cause_of_exception, unready, was_killed
from streamsampler.protocol.messages import Phase
from streamsampler.samplers.failures import loss_error
from streamsampler.stepping.loss_scheduler import subject_of


def reword(error: BaseException, quota: SpentQuota | None, history: tuple[Loss, ...]) -> None:
    """Add the exhausted quota, if any, to the error of a loss."""
    if quota is not None and isinstance(error, WorkerError):
        error.quota, error.incidents = quota, history
        error.args = (error.worded(quota, error.outlook),)


def count_loss(error: BaseException, losses: Losses) -> bool:
    """Count an error's loss; return whether it exhausts a quota, and add that to the message."""
    incidents: tuple[Loss, ...] = getattr(error, "incidents", ())
    quota = losses.count(incidents[-1]) if incidents else None
    if quota is not None:
        reword(error, quota, losses.history())
    return quota is not None


class EnvErrors:
    """Makes the errors of environments and workers; their `incidents` are the losses that quotas count."""

    def __init__(self, policy: Policy, envs_of: Sequence[Sequence[int]]) -> None:
        self._policy = policy
        self._envs_of = envs_of
        self._began = time.monotonic()

    def raised(
        self, env_id: int, worker: int, phase: str, summary: str, cause: BaseException, original: BaseException | None
    ) -> RolloutError:
        """Return an environment's error; `cause` is the exception, or its traceback as text."""
        what = f"environment {env_id} raised in {phase}, in worker {worker}: {summary}"
        incidents: tuple[Loss, ...] = ()
        if self._policy.restart_on and not isinstance(original, ActionError):
            text = cause.text if isinstance(cause, RemoteTraceback) else "".join(traceback.format_exception(cause))
            likeness = LossKind(subject_of(env_id), (phase, *cause_of_exception(summary.partition(":")[0], text)))
            raised = f"raised in environment {env_id}"
            incidents = (Loss(worker, raised, _phase(phase), *self._when, likeness=likeness),)
        error = RolloutError(
            what, worker_number=worker, phase=phase, trajectory=None, original=original, incidents=incidents
        )
        error.__cause__ = cause
        return error

    def died(self, worker: int, exitcode: int | None, what: str, phase: Phase, env_id: int | None) -> WorkerError:
        likeness = self._likeness(worker, phase, what, env_id, by_chance=was_killed(exitcode))
        return self._lost(Loss(worker, what, phase, *self._when, exitcode=exitcode, likeness=likeness), env_id)

    def hung(self, worker: int, hang: Hang, phase: Phase, env_id: int | None) -> WorkerError:
        what = f"made no progress for {hang.seconds:.3g} s, and was killed,"
        likeness = self._likeness(worker, phase, hang.stack, env_id, by_chance='File "' not in hang.stack)
        return self._lost(
            Loss(worker, what, phase, *self._when, stack=hang.stack, hung=True, likeness=likeness), env_id
        )

    @staticmethod
    def _likeness(
        worker: int, phase: Phase, cause: str, env_id: int | None, *, by_chance: bool = False
    ) -> LossKind | None:
        if phase is Phase.ENV_CONSTRUCTION:
            return LossKind(unready(worker), cause, by_chance)
        return None if env_id is None else LossKind(subject_of(env_id), (phase, cause), by_chance)

    @property
    def _when(self) -> tuple[None, None, float]:
        return None, None, time.monotonic() - self._began

    def _lost(self, incident: Loss, env_id: int | None) -> WorkerError:
        which = "" if env_id is None else f" {env_id}"
        envs = ", ".join(map(str, self._envs_of[incident.worker]))
        return loss_error(incident, None, (incident,), f"{incident}{which}; it ran environments {envs}")


def _phase(word: str) -> Phase:
    return Phase.RESET if word == "reset" else Phase.STEP if word == "step" else Phase.ENV_CONSTRUCTION
