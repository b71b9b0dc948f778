"""Taking in what workers found out about their environments: warnings, and the error that ends a call."""

from __future__ import annotations

from streamsampler.data.statistics import Stats
from streamsampler.engines.base import Answered
from streamsampler.errors import NotReproducibleError
from streamsampler.protocol.messages import Checked, Failure, Phase
from streamsampler.samplers.session import Session
from streamsampler.samplers.supervisor import logger

__all__ = ["take_verdict"]


def take_verdict(event: Answered, checked: Checked, session: Session, stats: Stats) -> NotReproducibleError | None:
    """Take in what a worker found out about its environment; return the error that ends the call, if one does."""
    worker, ticket = event.worker, event.answer.ticket
    if isinstance(event.answer, Failure):
        stats.take_checked(checked)
    current = ticket is not None and ticket.version == session.dispatcher.version
    warnings, refused = session.verdicts.take(worker, checked, current=current)
    for warning in warnings:
        logger.warning("%s", warning)
    if not refused:
        return None
    session.updates.forget(worker)  # what carries something from one trajectory to the next is not used again
    message = f"worker {worker} found, while {Phase.CHECK}: {refused}"
    return NotReproducibleError(message, worker_number=worker, phase=Phase.CHECK, trajectory=None)
