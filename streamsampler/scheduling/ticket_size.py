"""Decide how many trajectories a ticket has. No I/O."""

from __future__ import annotations

import math

from streamsampler.scheduling.throughput import Throughput

__all__ = ["SHORTEST_TICKET_SECONDS", "TICKET_BYTES", "TICKET_SECONDS", "ticket_size", "trajectories_in_ticket"]

TRAJECTORIES_A_ROW = 4
"""How many trajectories a ticket should have for each row, where rows run side by side: a row that is done before the
others goes on with the next ticket, but not with the one after it. With one trajectory a row rows whose lengths vary
are idle for a third of the time or more; with four for less than a fifth."""

TICKET_SECONDS = 0.1
"""What a ticket should take: long compared with the cost of a report (some 0.5 ms in either process, with cold caches),
short compared with a human's patience."""

TICKET_BYTES = 1 << 24
"""What a ticket's observations should take at most: they are in memory twice for a while, and should be in the
processor's cache when they are copied."""

SHORTEST_TICKET_SECONDS = 0.003
"""Below this the last tickets of a call cost more than workers lose by finishing at different times."""


def ticket_size(
    throughput: Throughput, remaining: int, n_workers: int, slowness: float, unit: int, rows: int = 0
) -> int:
    """Return the number of trajectories of the next ticket: a multiple of `unit`.

    Args:
        throughput: How long trajectories take.
        remaining: How many trajectories are still to be assigned.
        n_workers: How many workers share them.
        slowness: How many times as long as the average the ticket's worker takes.
        unit: How many trajectories a worker runs side by side, or a block has.
        rows: How many rows the worker fills from several tickets at once; 0 where it does not.
    """
    # Guided self-scheduling (Polychronopoulos and Kuck, 1987): a share of what remains, so that the last tickets
    # are small and all workers finish together. A slow worker's share is smaller: weighted factoring (Hummel,
    # Schmidt, Uma and Wein, 1996).
    share = math.ceil(remaining / (2 * n_workers * slowness))
    worth_a_report = throughput.trajectories_in(SHORTEST_TICKET_SECONDS / slowness, TICKET_BYTES)
    for_rows = min(TRAJECTORIES_A_ROW * rows, throughput.trajectories_in(math.inf, TICKET_BYTES))
    size = min(max(trajectories_in_ticket(throughput, slowness), for_rows), max(share, worth_a_report))
    return max(1, size // unit) * unit


def trajectories_in_ticket(throughput: Throughput, slowness: float = 1.0) -> int:
    """Return how many trajectories fill a ticket's time and memory."""
    return throughput.trajectories_in(TICKET_SECONDS / slowness, TICKET_BYTES)
