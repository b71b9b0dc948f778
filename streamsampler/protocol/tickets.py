"""Decide how many trajectories a ticket has. Pure."""

from __future__ import annotations

import math

from streamsampler.protocol.throughput import Throughput


def needed_for(timesteps: int, mean: float, spread: float) -> int:
    """Return how many trajectories have `timesteps` if n of them fall short by `spread` * sqrt(n)."""
    # The least n with n * mean - spread * sqrt(n) >= timesteps: a quadratic equation for sqrt(n).
    if timesteps <= 0:
        return 0
    root = (spread + math.sqrt(spread * spread + 4 * mean * timesteps)) / (2 * mean)
    return math.ceil(root * root - 1e-6)


TRAJECTORIES_A_ROW = 4
"""Trajectories of a ticket for each row of a worker: a row that ends early continues with the next ticket, but not with
the ticket after it. With 1, rows of varied lengths are idle for at least a third of the time; with 4 for less than a
fifth.
"""

TICKET_SECONDS = 0.1
"""Seconds of a ticket: long compared with a report (about 0.5 ms in either process, with cold caches), short compared
with a human's patience.
"""

SHARE_OF_TICKETS, SHARE_OF_SHORTEST = 1e-3, 5e-5
"""Seconds added for each worker to a ticket's duration, and to the shortest. A single process receives the reports of
all workers, each in 0.1 to 0.5 ms: with full tickets it is busy for at most half of its time.
"""

TICKET_BYTES = 1 << 24
"""Most bytes of a ticket's observations: they are in memory twice for a while, and should be in the processor's cache
when they are copied.
"""

SHORTEST_TICKET_SECONDS = 0.003
"""Below this the last tickets cost more than workers lose by finishing at different times. Engines with more expensive
reports have a limit of their own.
"""


def ticket_size(
    throughput: Throughput, remaining: int, n_workers: int, slowness: float, unit: int, rows: int = 0,
    shortest: float = SHORTEST_TICKET_SECONDS, parts: int = 2,
) -> int:  # fmt: skip
    """Return the number of trajectories of the next ticket: a multiple of `unit`, a block or all rows.

    `remaining` trajectories are to be assigned, in `parts` for each worker. The worker takes `slowness` times the
    average, and fills `rows` from several tickets, unless 0. Tickets last `shortest` seconds or more.
    """
    # Guided self-scheduling (Polychronopoulos and Kuck, 1987): a share of the rest, so that the last tickets are small
    # and all workers finish together. A slow worker's share is smaller: weighted factoring (Hummel, Schmidt, Uma and
    # Wein, 1996).
    share = math.ceil(remaining / (parts * n_workers * slowness))
    shortest = max(shortest, SHARE_OF_SHORTEST * n_workers)
    worth_a_report = throughput.trajectories_in(shortest / slowness, TICKET_BYTES)
    seconds = max(TICKET_SECONDS, SHARE_OF_TICKETS * n_workers) / slowness
    most = throughput.trajectories_in(seconds, TICKET_BYTES)
    if rows:
        most = max(most, min(TRAJECTORIES_A_ROW * rows, throughput.trajectories_in(math.inf, TICKET_BYTES)))
    size = min(most, max(share, worth_a_report))
    return max(1, size // unit) * unit
