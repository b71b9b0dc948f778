"""Decide with which gathering a session gathers what a plan asks for."""

from __future__ import annotations

from typing import TypeVar

from streamsampler.samplers.session import Session
from streamsampler.scheduling.gathering import Gathering
from streamsampler.scheduling.plans import Fragments, GatherPlan

__all__ = ["gathering_for"]

GatheringT = TypeVar("GatheringT", bound=Gathering)


def gathering_for(session: Session, plan: GatherPlan, kind: type[GatheringT]) -> GatheringT:
    """Return a gathering of the agents and environments that workers use now."""
    is_whole, engine = not isinstance(plan, Fragments), session.engine
    gathering = kind(
        plan,
        n_workers=engine.n_workers,
        order=session.order,
        throughput=session.throughput if is_whole else None,
        own_queues=session.used.differ or not is_whole,
        layout=session.layout_of(plan),
        dropping=session.supervisor.policy.on_failure == "drop",
        concurrent=engine.concurrent,
        shortest_ticket=engine.shortest_ticket_seconds,
        # Not methods of a call: in a cycle, a batch's memory would wait for the garbage collector.
        steps_of=session.shown_timesteps,
        is_awaited=session.is_checking,
    )
    for worker in session.lanes() if is_whole else ():
        gathering.run_lanes(worker)
    return gathering
