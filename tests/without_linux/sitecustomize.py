"""Takes away what only Linux has, from every Python process whose PYTHONPATH has this folder, before anything else."""

import contextlib
import ctypes
import fcntl
import os
import signal

for name in ("memfd_create", "pidfd_open", "sched_getaffinity", "posix_fallocate", "waitid"):
    with contextlib.suppress(AttributeError):
        delattr(os, name)
for module, name in ((fcntl, "F_SETSIG"), (signal, "pidfd_send_signal")):
    with contextlib.suppress(AttributeError):
        delattr(module, name)

_real = ctypes.CDLL.__getattr__


def _without_prctl(self, name):
    if name == "prctl":
        raise AttributeError(name)
    return _real(self, name)


ctypes.CDLL.__getattr__ = _without_prctl
