"""Compare the arithmetic of processes by fingerprints: digests of a fixed floating-point computation. Pure.

NumPy and torch choose kernels by processor. Kernels round differently, so a network's outputs, and then whole
trajectories, may differ between machines. Equal fingerprints mean kernels that round alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

_SHOWN = 8


class Fingerprint(NamedTuple):
    """How a process computes.

    Attributes:
        bits: A digest per library, such as "numpy=0c3f19d2e4aa torch=77ab02c3d1ef"; torch only where it is loaded.
        host: The machine's name.
        is_guest: Whether the program that started or forked the worker had loaded torch before.
    """

    bits: str
    host: str = ""
    is_guest: bool = False

    def without_torch(self) -> Fingerprint:
        digests = _digests(self.bits)
        bits = " ".join(f"{library}={digest}" for library, digest in digests.items() if library != "torch")
        return self._replace(bits=bits)


def _digests(bits: str) -> dict[str, str]:
    parts = [part.partition("=") for part in bits.split()]
    return {library: digest for library, _, digest in parts}


def differing_libraries(bits: Iterable[str]) -> list[str]:
    """Return the libraries with more than one digest among fingerprints; absent libraries do not count."""
    seen: dict[str, set[str]] = {}
    for text in bits:
        for library, digest in _digests(text).items():
            seen.setdefault(library, set()).add(digest)
    return sorted(library for library, digests in seen.items() if len(digests) > 1)


def agree(*bits: str) -> bool:
    return not differing_libraries(bits)


def disagreement(fingerprints: Iterable[tuple[int, Fingerprint]]) -> str:
    """Describe which workers compute differently from others; "" if all compute alike."""
    pairs = sorted(fingerprints)
    libraries = differing_libraries(print_.bits for _, print_ in pairs)
    groups: dict[tuple[str | None, ...], list[tuple[int, Fingerprint]]] = {}
    for worker, print_ in pairs:
        digests = _digests(print_.bits)
        key = tuple(digests.get(library) for library in libraries)
        if any(key):
            groups.setdefault(key, []).append((worker, print_))
    if len(groups) < 2:
        return ""
    verb = "computes" if len(libraries) == 1 else "compute"
    described = [f"{_place(group)} ({group[0][1].bits})" for group in groups.values()]
    return (
        f"{' and '.join(libraries)} {verb} with other kernels in some workers than in others, so the same seed may "
        f"give different trajectories: {'; '.join(described)}. For the same trajectories everywhere use machines of "
        "one kind, with the same versions of libraries"
    )


def _place(group: Sequence[tuple[int, Fingerprint]]) -> str:
    workers = series(sorted({worker for worker, _ in group}))
    hosts = list(dict.fromkeys(print_.host for _, print_ in group if print_.host))
    return f"{workers} on {_listed(hosts)}" if hosts else workers


def series(workers: Sequence[int]) -> str:
    """Return sorted worker numbers in words, such as "workers 0 to 3 and 7"."""
    runs: list[list[int]] = []
    for worker in workers:
        if runs and runs[-1][-1] == worker - 1:
            runs[-1][1:] = [worker]
        else:
            runs.append([worker])
    texts = [f"{run[0]} to {run[-1]}" if run[-1] - run[0] > 1 else " and ".join(map(str, run)) for run in runs]
    return f"{'worker' if len(workers) == 1 else 'workers'} {_listed(texts)}"


def _listed(texts: Sequence[str]) -> str:
    if len(texts) > _SHOWN:
        texts = [*texts[: _SHOWN - 1], f"{len(texts) - _SHOWN + 1} more"]
    return " and ".join(filter(None, (", ".join(texts[:-1]), texts[-1])))
