"""Describe the machine of a measurement."""

from __future__ import annotations

import datetime
import os
import platform
import re
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

__all__ = ["describe"]

_PACKAGES = ("streamsampler", "gymnasium", "numpy", "torch", "mujoco", "cloudpickle")


def describe() -> dict[str, Any]:
    """Describe this machine: processor, cores, memory in GiB, kernel, load, versions, and the date."""
    return {
        "cpu": _first_match("/proc/cpuinfo", r"model name\s*:\s*(.*)") or platform.processor(),
        "cores": len(os.sched_getaffinity(0)),
        "memory": round(int(_first_match("/proc/meminfo", r"MemTotal:\s*(\d+)") or 0) / 2**20, 1),
        "kernel": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "packages": _versions(),
        "load": os.getloadavg()[0],
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


def _first_match(path: str, pattern: str) -> str | None:
    file = Path(path)
    found = re.search(pattern, file.read_text()) if file.exists() else None
    return found.group(1).strip() if found else None


def _versions() -> dict[str, str]:
    found = {}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
