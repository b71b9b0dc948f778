"""The parts of episodes in a batch of fragments."""

from __future__ import annotations

import numpy as np

from streamsampler.data.segments import Segment
from streamsampler.data.trees import Array
from streamsampler.protocol.result import Result
from streamsampler.samplers.arrivals import Arrivals
from streamsampler.samplers.fragments import NOTHING_SO_FAR, EpisodeSoFar, FragmentLedger


class EpisodeParts:
    """The parts of episodes in a result for fragments, ordered by environment, then time."""

    def __init__(self, result: Result, arrivals: Arrivals, ledger: FragmentLedger) -> None:
        self._result, self._arrivals = result, arrivals
        self._n_envs, self._ledger = ledger.n_envs, ledger
        self._segments: list[Segment | None] = []  # None for forgotten ones
        self._parts: list[tuple[int, bool, EpisodeSoFar]] = []  # environment, whether it is continued, its earlier part
        # Counts of environments' segments, own segments and parts; a single tuple, which no interrupt can split.
        self._taken = 0, 0, 0

    def segments(self, first: int = 0) -> list[Segment]:
        for segment in self._arrivals.segments(self._result.spans(self._taken[0])):
            self._take(segment)
        return [segment for segment in self._segments[first:] if segment is not None]

    def _take(self, of_envs: Segment) -> None:
        n_taken, n_segments, n_parts = self._taken
        del self._segments[n_segments:], self._parts[n_parts:]  # left by an interrupt in this method
        delivery, groups, position = of_envs.delivery, of_envs.indices, 0
        for fragment in delivery.rollouts.fragments:
            number, n = fragment.number, fragment.n_episodes
            if fragment.group not in groups:
                position += n
                continue
            first = number + fragment.first * self._n_envs
            indices = range(first, first + n * self._n_envs, self._n_envs)
            self._segments.append(Segment(delivery, position, position + n, indices))
            self._parts.append((number, fragment.continued, self._ledger.earlier_of(fragment)))
            self._parts += [(number, False, NOTHING_SO_FAR)] * (n - 1)
            position += n
        self._taken = n_taken + 1, len(self._segments), len(self._parts)
        self._result.forget_spans(n_taken, n_taken + 1)

    def forget_segments(self, first: int, stop: int) -> None:
        self._segments[first:stop] = [None] * (stop - first)

    def fields(self) -> dict[str, Array]:
        return {
            "continued": np.array([continued for _, continued, _ in self._parts], np.bool_),
            "env_numbers": np.array([number for number, _, _ in self._parts], np.int64),
            "earlier_lengths": np.array([before.length for _, _, before in self._parts], np.int64),
            "earlier_returns": np.array([before.returned for _, _, before in self._parts], np.float64),
        }
