"""Compare the fingerprints of a sampler's workers. Pure."""

from __future__ import annotations

from streamsampler.core.errors import CheckMode
from streamsampler.core.fingerprints import Fingerprint, disagreement


class Fingerprints:
    """The workers' fingerprints; `mode` is the sampler's argument `fingerprint`."""

    def __init__(self, mode: CheckMode) -> None:
        self._mode = mode
        self._known: dict[int, Fingerprint] = {}
        self._of_dead: dict[int, Fingerprint] = {}  # until their replacements report theirs
        self._reported: set[str] = set()
        self._pending = ""

    def record(self, worker: int, found: Fingerprint) -> str:
        """Record a fingerprint; return the text of the error to end the call with, or ""."""
        before = self._of_dead.pop(worker, None)
        self._known[worker] = found
        text = disagreement(self._known.items())
        if not text and before is not None:
            # The batch may mix trajectories of this worker and of its predecessor on another machine.
            text = disagreement([*self._known.items(), (worker, before)])
        self._pending = text or self._pending
        return text if self._mode == "error" else ""

    def record_death(self, worker: int) -> None:
        """Remember a dead worker's fingerprint until its replacement reports another."""
        if (found := self._known.pop(worker, None)) is not None:
            self._of_dead[worker] = found

    def bits_of(self, worker: int) -> str:
        """Return the bits of a worker's fingerprint; "" before its report."""
        found = self._known.get(worker)
        return "" if found is None else found.bits

    @property
    def bits(self) -> list[str]:
        return sorted({found.bits for found in self._known.values()})

    def refusal(self) -> str:
        """Return an error for the next call if living workers differ; or ""."""
        return disagreement(self._known.items()) if self._mode == "error" else ""

    def warning(self, n_expected: int = 0) -> str:
        """Return a warning, once all `n_expected` fingerprints are known; or ""."""
        if len(self._known) < n_expected:
            return ""
        text, self._pending = self._pending, ""
        if self._mode != "warn" or text in self._reported:
            return ""
        self._reported.add(text)
        return text
