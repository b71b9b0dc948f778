"""Compare the fingerprints that a sampler's workers tell, and decide what is said about those that differ. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from streamsampler.errors import CheckMode
from streamsampler.protocol.fingerprints import Fingerprint, agree, disagreement

__all__ = ["Fingerprints", "sampled_elsewhere"]

_ELSEWHERE = (
    "{} was begun where NumPy or torch compute with other kernels ({} there, {} here), so what is sampled now may not "
    "be what would have been sampled there. Continue on a machine of that kind, or with the environment variables that "
    'choose the same kernels: see "Other processors" in the guide, streamsampler.samplers'
)


class Fingerprints:
    """What is known of how a sampler's workers compute.

    Args:
        mode: The sampler's argument `fingerprint`.
    """

    def __init__(self, mode: CheckMode) -> None:
        self._mode = mode
        self._told: dict[int, Fingerprint] = {}
        self._of_dead: dict[int, Fingerprint] = {}  # until the workers in their places tell theirs
        self._reported: set[str] = set()
        self._pending = ""

    def take(self, worker: int, found: Fingerprint) -> str:
        """Record the fingerprint of a worker; return what the call ends with, or ""."""
        before = self._of_dead.pop(worker, None)
        self._told[worker] = found
        text = disagreement(self._told.items())
        if not text and before is not None:
            # The batch may have trajectories of this worker, and of the one on another machine that it replaced.
            text = disagreement([*self._told.items(), (worker, before)])
        self._pending = text or self._pending
        return text if self._mode == "error" else ""

    def worker_died(self, worker: int) -> None:
        """Forget the fingerprint of a worker that died, once that of the worker in its place is known."""
        if (found := self._told.pop(worker, None)) is not None:
            self._of_dead[worker] = found

    def bits_of(self, worker: int) -> str:
        """Return the bits of a worker's fingerprint; "" before the worker has told it."""
        found = self._told.get(worker)
        return "" if found is None else found.bits

    @property
    def bits(self) -> list[str]:
        """The bits of all fingerprints that are known, each once."""
        return sorted({found.bits for found in self._told.values()})

    def refusal(self) -> str:
        """Return what the next call ends with at once, or "": the living workers are known to differ."""
        return disagreement(self._told.items()) if self._mode == "error" else ""

    def warning(self, n_expected: int = 0) -> str:
        """Return what to warn of, once; or "".

        Args:
            n_expected: Return nothing yet while fewer workers have told their fingerprints: one warning names them all.
        """
        if len(self._told) < n_expected:
            return ""
        text, self._pending = self._pending, ""
        if self._mode != "warn" or text in self._reported:
            return ""
        self._reported.add(text)
        return text


def sampled_elsewhere(place: str, there: Collection[str], here: Iterable[str]) -> str:
    """Describe which fingerprints are new to a folder; "" if each agrees with one of the folder's.

    Args:
        place: The folder.
        there: The fingerprints of those who sampled what it holds; none if it holds nothing.
        here: Those of who samples what comes next.
    """
    strangers = [bits for bits in sorted(here) if there and not any(agree(bits, other) for other in there)]
    return _ELSEWHERE.format(place, " and ".join(sorted(there)), " and ".join(strangers)) if strangers else ""
