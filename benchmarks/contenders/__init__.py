"""One module for each contender; `python -m benchmarks.contenders.NAME WORKLOAD` runs it, see `harness.contender`."""

import contextlib
import importlib
import importlib.util
import pathlib
import sys
import types


def _give_earlier_versions_todays_names() -> None:
    """Let contenders import what earlier versions, which are measured as well, have in other folders."""
    package = importlib.util.find_spec("streamsampler")
    if package is None or (pathlib.Path(package.origin or "").parent / "core").is_dir():
        return
    sys.modules["streamsampler.core"] = types.ModuleType("streamsampler.core")
    for today, earlier in (("core", "errors extras seeding serialization timing"), ("protocol", "throughput")):
        for name in earlier.split():
            home = f"streamsampler.{name}" if today == "core" else f"streamsampler.scheduling.{name}"
            with contextlib.suppress(ModuleNotFoundError):
                module = importlib.import_module(home)
                sys.modules[f"streamsampler.{today}.{name}"] = module
                setattr(importlib.import_module(f"streamsampler.{today}"), name, module)


_give_earlier_versions_todays_names()
