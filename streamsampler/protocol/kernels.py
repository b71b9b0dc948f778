"""Compare the fingerprints of a sampler's workers, and decide what becomes of those that differ. Pure."""

from __future__ import annotations

from streamsampler.core.errors import CheckMode
from streamsampler.core.fingerprints import Fingerprint, disagreement


class Fingerprints:
    """How a sampler's workers compute, as far as it is known; `mode` is the sampler's argument `fingerprint`."""

    def __init__(self, mode: CheckMode) -> None:
        self._mode = mode
        self._known: dict[int, Fingerprint] = {}
        self._of_dead: dict[int, Fingerprint] = {}  # until the workers in their places report theirs
        self._reported: set[str] = set()
        self._pending = ""

    def record(self, worker: int, found: Fingerprint) -> str:
        """Record the fingerprint of a worker; return the text that the call ends with, or ""."""
        before = self._of_dead.pop(worker, None)
        self._known[worker] = found
        text = disagreement(self._known.items())
        if not text and before is not None:
            # The batch may have trajectories of this worker, and of the one on another machine that it replaced.
            text = disagreement([*self._known.items(), (worker, before)])
        self._pending = text or self._pending
        return text if self._mode == "error" else ""

    def record_death(self, worker: int) -> None:
        """Forget the fingerprint of a worker that died, once that of the worker in its place is known."""
        if (found := self._known.pop(worker, None)) is not None:
            self._of_dead[worker] = found

    def bits_of(self, worker: int) -> str:
        """Return the bits of a worker's fingerprint; "" before the worker has reported it."""
        found = self._known.get(worker)
        return "" if found is None else found.bits

    @property
    def bits(self) -> list[str]:
        """The bits of all fingerprints that are known, each once."""
        return sorted({found.bits for found in self._known.values()})

    def refusal(self) -> str:
        """Return the text that the next call ends with at once, or "": the living workers are known to differ."""
        return disagreement(self._known.items()) if self._mode == "error" else ""

    def warning(self, n_expected: int = 0) -> str:
        """Return the text to warn with, once; or "".

        Not while the fingerprints of fewer than `n_expected` workers are known: one warning names them all.
        """
        if len(self._known) < n_expected:
            return ""
        text, self._pending = self._pending, ""
        if self._mode != "warn" or text in self._reported:
            return ""
        self._reported.add(text)
        return text
