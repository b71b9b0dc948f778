"""Compare fingerprints: digests of a fixed piece of float arithmetic, as a process computes it. Pure.

NumPy and torch have several kernels for the same operation, and choose by the processor. The kernels round differently,
so that a network's numbers, and then whole trajectories, may differ from machine to machine. Two processes whose
fingerprints agree chose kernels that round alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

__all__ = ["VARIABLES", "Fingerprint", "agree", "differing_libraries", "disagreement", "series"]

VARIABLES = ("OPENBLAS_CORETYPE", "NPY_DISABLE_CPU_FEATURES", "ATEN_CPU_CAPABILITY", "MKL_CBWR")
"""The environment variables that choose kernels, for NumPy and for torch."""

# From those that every processor can run to those that only the newest can.
_CORE_TYPES = (
    *("prescott", "core2", "nehalem", "sandybridge", "haswell", "zen", "skylakex", "cooperlake", "sapphirerapids"),
    *("armv8", "cortexa57", "neoversen1", "neoversev1", "neoversen2"),
)
_CAPABILITIES = "default", "avx2", "avx512"
_SHOWN = 8


class Fingerprint(NamedTuple):
    """How a process computes.

    Attributes:
        bits: A digest for each library, such as "numpy=0c3f19d2e4aa torch=77ab02c3d1ef"; torch only where it is loaded.
        host: The name of the machine.
        blas: Which kernels OpenBLAS chose; empty where that is not known.
        simd: Which of NumPy's own kernels for newer processors are in use.
        torch: Which kernels torch chose; empty where it is not loaded.
        is_guest: Whether torch was loaded before the worker was made, by the program whose process it shares or was
            forked from.
    """

    bits: str
    host: str = ""
    blas: str = ""
    simd: tuple[str, ...] = ()
    torch: str = ""
    is_guest: bool = False

    def without_torch(self) -> Fingerprint:
        """Return the same without torch, where neither agent nor environment needs it."""
        digests = _digests(self.bits)
        bits = " ".join(f"{library}={digest}" for library, digest in digests.items() if library != "torch")
        return self._replace(bits=bits, torch="")

    @property
    def kernels(self) -> str:
        """The kernels in words."""
        blas = f"OpenBLAS {self.blas}" if self.blas else ""
        simd = f"NumPy {self.simd[-1]}" if self.simd else ""
        torch = f"torch {self.torch}" if self.torch else ""
        return _joined(blas, simd, torch)


def _digests(bits: str) -> dict[str, str]:
    parts = [part.partition("=") for part in bits.split()]
    return {library: digest for library, _, digest in parts}


def differing_libraries(bits: Iterable[str]) -> list[str]:
    """Return the libraries that compute other bits in one of these fingerprints than in another.

    A library that is in one of two only is not compared: torch, where a process has not loaded it.
    """
    seen: dict[str, set[str]] = {}
    for text in bits:
        for library, digest in _digests(text).items():
            seen.setdefault(library, set()).add(digest)
    return sorted(library for library, digests in seen.items() if len(digests) > 1)


def agree(*bits: str) -> bool:
    """Whether all of these fingerprints agree."""
    return not differing_libraries(bits)


def disagreement(told: Iterable[tuple[int, Fingerprint]]) -> str:
    """Describe which workers compute otherwise than others, and what to do about that; "" if all compute alike.

    Args:
        told: The workers by number, each with a fingerprint; in any order.
    """
    pairs = sorted(told)
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
    kernels = [_kernels(group) for group in groups.values()]
    if len(set(kernels)) < len(kernels) or not all(kernels):  # their names do not tell them apart
        kernels = [_joined(names, group[0][1].bits) for names, group in zip(kernels, groups.values(), strict=True)]
    described = [_place(group) + f" ({names})" for group, names in zip(groups.values(), kernels, strict=True)]
    return (
        f"{' and '.join(libraries)} {verb} with other kernels in some workers than in others, so the same seed may "
        f"give other trajectories there: {'; '.join(described)}. "
        f"{_recipe([print_ for _, print_ in pairs], libraries)}"
    )


def _place(group: Sequence[tuple[int, Fingerprint]]) -> str:
    workers = series(sorted({worker for worker, _ in group}))
    hosts = list(dict.fromkeys(print_.host for _, print_ in group if print_.host))
    return f"{workers} on {_listed(hosts)}" if hosts else workers


def _kernels(group: Sequence[tuple[int, Fingerprint]]) -> str:
    return " or ".join(dict.fromkeys(print_.kernels for _, print_ in group if print_.kernels))


def _joined(*texts: str) -> str:
    return ", ".join(filter(None, texts))


def series(workers: Sequence[int]) -> str:
    """Return worker numbers in words, such as "workers 0 to 3 and 7"; they are sorted, and there is one at least."""
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


def _recipe(prints: Collection[Fingerprint], libraries: Collection[str]) -> str:
    settings: dict[str, str] = {}
    if "numpy" in libraries:
        settings["OPENBLAS_CORETYPE"] = _least({print_.blas for print_ in prints}, _CORE_TYPES)
        in_all = set.intersection(*(set(print_.simd) for print_ in prints))
        in_some = dict.fromkeys(name for print_ in prints for name in print_.simd)
        settings["NPY_DISABLE_CPU_FEATURES"] = ",".join(name for name in in_some if name not in in_all)
    if "torch" in libraries:
        settings["ATEN_CPU_CAPABILITY"] = _least({print_.torch.lower() for print_ in prints}, _CAPABILITIES)
        settings["MKL_CBWR"] = "COMPATIBLE"
    text = " ".join(f"{name}={value}" for name, value in settings.items() if value)
    if not text:
        return "For the same trajectories everywhere use machines of one kind, with the same versions of libraries"
    return (
        "For the same trajectories everywhere use machines of one kind; or set, on all machines and before Python "
        f"starts, {text}"
    )


def _least(names: Collection[str], order: Sequence[str]) -> str:
    """Return the name that comes first in `order`; "" where one of them is not known."""
    known: Mapping[str, int] = {name: place for place, name in enumerate(order)}
    found = [name for name in names if name]
    if not found or any(name.lower() not in known for name in found):
        return ""
    return min(found, key=lambda name: known[name.lower()])
