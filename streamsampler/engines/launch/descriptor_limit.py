"""Raise this process's limit of descriptors for the workers it starts, and restore it in workers."""

from __future__ import annotations

import contextlib
import errno
import os

from streamsampler.core.errors import ResourceLimitError

# Shells commonly allow 1,024 descriptors (`ulimit -n`), enough for about 145 workers. The sampler's process raises this
# up to the system's limit. Workers return to the limit before: programs started in them may rely on it.


try:
    import resource
except ImportError:  # Windows has no such limit
    resource = None  # type: ignore[assignment]


PER_WORKER = 7
"""Descriptors in the sampler's process for each worker: three pipes, its memory (twice, when mapped), and its end,
reported by the kernel and by its watchdog.
"""

_SHARED = 40  # for all workers together, the start of a worker, and other code

_original: int | None = None  # the limit before it was raised here
_raised: int | None = None  # the raised limit


def make_room(n_workers: int) -> None:
    """Raise this process's limit of descriptors if `n_workers` more workers need it.

    Raises:
        ResourceLimitError: The system does not allow it.
    """
    if not hasattr(resource, "getrlimit"):
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    n_open = _n_open()
    needed = n_open + _SHARED + PER_WORKER * n_workers
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return
    if hard != resource.RLIM_INFINITY and needed > hard:
        raise _too_few(n_workers, needed, hard, n_open)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
    except (OSError, ValueError):  # macOS has a lower limit of its own
        raise _too_few(n_workers, needed, soft, n_open) from None
    global _original, _raised
    # Other code may have changed the limit since it was last raised here.
    _original, _raised = _original if soft == _raised else soft, needed


def _n_open() -> int:
    """Return the number of open descriptors; 64 if unknown."""
    with contextlib.suppress(OSError):
        return len(os.listdir("/dev/fd"))
    return 64


def _too_few(n_workers: int, needed: int, limit: int, n_open: int) -> ResourceLimitError:
    possible = max(0, (limit - n_open - _SHARED) // PER_WORKER)
    return ResourceLimitError(
        errno.EMFILE,
        f"{n_workers} workers need {needed:,} file descriptors ({PER_WORKER} for each worker, and {n_open} are open "
        f"already), but this process may open only {limit:,}: raise the limit before it starts (`ulimit -n {needed}`), "
        f"or use at most {possible} workers",
    )


def original_limit() -> int | None:
    """Return the limit before `make_room` raised it; None if nothing, or other code, changed it."""
    # Without a limit nothing was raised.
    return _original if _raised and resource.getrlimit(resource.RLIMIT_NOFILE)[0] == _raised else None


def lower_limit(limit: int | None) -> None:
    """Give this process, a worker, the sampler's original limit of descriptors; None changes nothing."""
    if limit is not None:
        _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def allow_all() -> int:
    """Raise this process's limit, a fork server's, to the system's; return the limit before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft
