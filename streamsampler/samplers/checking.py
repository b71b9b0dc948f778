"""Warn of what workers found in their environments, or return the error that ends the call."""

from __future__ import annotations

from streamsampler.data.statistics import Stats
from streamsampler.errors import NotReproducibleError
from streamsampler.protocol.messages import Answer, Checked, Failure, Phase
from streamsampler.samplers.records import WorkerRecord
from streamsampler.samplers.session import Session
from streamsampler.samplers.supervisor import logger

__all__ = ["take_verdict"]


def take_verdict(
    record: WorkerRecord, answer: Answer, checked: Checked, session: Session, stats: Stats
) -> NotReproducibleError | None:
    """Warn of what a worker found in its environment; return the error that ends the call, if one does."""
    worker, ticket = record.worker, answer.ticket
    if isinstance(answer, Failure):
        stats.take_checked(checked)
    current = ticket is not None and ticket.version == session.version
    warnings, refused = session.verdicts.take(record, session.records, checked, current=current)
    for warning in warnings:
        logger.warning("%s", warning)
    if not refused:
        return None
    record.sent.clear()  # an environment that carries something from one trajectory to the next is not used again
    message = f"worker {worker} found, while {Phase.CHECK}: {refused}"
    return NotReproducibleError(message, worker_number=worker, phase=Phase.CHECK, trajectory=None)
