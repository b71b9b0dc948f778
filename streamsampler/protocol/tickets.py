"""Decide how many trajectories a ticket has. Pure."""

from __future__ import annotations

import math

from streamsampler.protocol.throughput import Throughput


def needed_for(timesteps: int, mean: float, spread: float) -> int:
    """Return how many trajectories have that many timesteps together, if they fall short of their mean.

    One trajectory falls short by `spread` timesteps, n of them by sqrt(n) times as much.
    """
    # The least n with n * mean - spread * sqrt(n) >= timesteps: a quadratic equation for sqrt(n).
    if timesteps <= 0:
        return 0
    root = (spread + math.sqrt(spread * spread + 4 * mean * timesteps)) / (2 * mean)
    return math.ceil(root * root - 1e-6)


TRAJECTORIES_A_ROW = 4
"""How many trajectories a ticket should have for each row, where rows run side by side: a row that is done before the
others goes on with the next ticket, but not with the one after it. With one trajectory a row rows whose lengths vary
are idle for a third of the time or more; with four for less than a fifth."""

TICKET_SECONDS = 0.1
"""What a ticket should take: long compared with the cost of a report (some 0.5 ms in either process, with cold caches),
short compared with a human's patience."""

SHARE_OF_TICKETS, SHARE_OF_SHORTEST = 1e-3, 5e-5
"""For each worker, so many seconds are added to what a ticket should take, and to the shortest one, where there are so
many workers that this is longer. One process takes in the reports of all of them, each in 0.1 to 0.5 ms: with full
tickets it is busy for half of its time at most."""

TICKET_BYTES = 1 << 24
"""What a ticket's observations should take at most: they are in memory twice for a while, and should be in the
processor's cache when they are copied."""

SHORTEST_TICKET_SECONDS = 0.003
"""Below this the last tickets of a call cost more than workers lose by finishing at different times. An engine whose
reports cost more has a limit of its own."""


def ticket_size(
    throughput: Throughput, remaining: int, n_workers: int, slowness: float, unit: int, rows: int = 0,
    shortest: float = SHORTEST_TICKET_SECONDS, parts: int = 2,
) -> int:  # fmt: skip
    """Return the number of trajectories of the next ticket: a multiple of `unit`, a block or what runs side by side.

    `remaining` ones are to be assigned. The ticket's worker takes `slowness` times as long as the average, and fills so
    many `rows` from several tickets at once (0: it does not). Below `shortest` seconds the last tickets cost more than
    workers lose by finishing at different times. Each worker's share of what remains is cut into so many `parts`.
    """
    # Guided self-scheduling (Polychronopoulos and Kuck, 1987): a share of what remains, so that the last tickets
    # are small and all workers finish together. A slow worker's share is smaller: weighted factoring (Hummel,
    # Schmidt, Uma and Wein, 1996).
    share = math.ceil(remaining / (parts * n_workers * slowness))
    shortest = max(shortest, SHARE_OF_SHORTEST * n_workers)
    worth_a_report = throughput.trajectories_in(shortest / slowness, TICKET_BYTES)
    seconds = max(TICKET_SECONDS, SHARE_OF_TICKETS * n_workers) / slowness
    most = throughput.trajectories_in(seconds, TICKET_BYTES)
    if rows:
        most = max(most, min(TRAJECTORIES_A_ROW * rows, throughput.trajectories_in(math.inf, TICKET_BYTES)))
    size = min(most, max(share, worth_a_report))
    return max(1, size // unit) * unit
