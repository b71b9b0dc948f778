"""List the engines of worker processes and their capabilities. Imports nothing that only POSIX has."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.engines.launch.start_methods import StartMethod, default_start_method, has_processes
from streamsampler.protocol.limits import LIMITS

if TYPE_CHECKING:  # the command's help must come at once
    from streamsampler.engines.base import Engine

EngineName = Literal["processes", "queues"]

THIS_SYSTEM = "this system"


@dataclass(frozen=True)
class Capabilities:
    """The capabilities of an engine.

    Attributes:
        made_by: Module and class, called with `(n_workers, make_worker, seed, close_timeout=…, threads=…)`, where
            `make_worker` is pickled; with a limit `max_worker_memory` also `report_memory=True`.
        needs_linux: Whether it runs only on Linux.
        takes: Further arguments of the sampler for the class: "start_method", or none. Without it, only the default
            start method is allowed.
        lacks: The sampler's arguments it cannot serve, with the reasons.
    """

    made_by: tuple[str, str]
    needs_linux: bool = False
    takes: frozenset[str] = frozenset()
    lacks: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> Callable[..., Engine]:
        """Import the engine, perhaps with modules missing on some systems."""
        module, name = self.made_by
        make: Callable[..., Engine] = getattr(importlib.import_module(f"streamsampler.{module}"), name)
        return make

    def refuse_lacking(self, asked: str, options: Mapping[str, Any]) -> None:
        """Raise a UsageError for options in `lacks`; `asked` is the argument to blame."""
        for option, reason in self.lacks.items():
            if options.get(option) is not None:
                option = f"limits.{option}" if option in LIMITS else option
                way_out = f"Leave {option} out" if asked == THIS_SYSTEM else "Leave one of the two out"
                raise UsageError(f"{asked} takes no {option}: {reason}. {way_out}")


ENGINES: dict[EngineName, Capabilities] = {
    "processes": Capabilities(("engines.processes.engine", "ProcessEngine"), needs_linux=True),
    "queues": Capabilities(
        ("engines.queues", "QueueEngine"),
        takes=frozenset({"start_method"}),
        lacks={"max_worker_memory": "not every system reports the memory of a process"},
    ),
}
"""All engines of processes; the first to run on this system is the default.

Besides the entries of `lacks`, `queues` cannot: show the Python stacks of a hung worker while native code holds the
interpreter's lock; end processes of an environment outside of the worker's process group, or any of them on Windows;
notice a fork of the worker by its environment; run in a daemonic process; die at the places of
`streamsampler.testing.FailPoint`.
"""


RAY = Capabilities(("engines.ray", "RayEngine"), lacks={"start_method": "Ray starts the processes"})
"""The engine of Ray, for another sampler: it needs Ray, and other arguments.

Besides the entries of `lacks`, it cannot do what `queues` cannot, nor show the Python stacks of a stopped worker, nor
end processes of an environment. Of a dead worker it knows Ray's message, without an exit code, and timesteps up to the
last answer or the last request of progress. Environments do not run in the main thread, so they cannot set signal
handlers, and their output stays in Ray's logs.
"""


PARENT = Capabilities(
    ("stepping.inference.worker", "ParentEngine"),
    lacks={
        "max_worker_memory": "in the environments of its processes trajectories continue from ticket to ticket",
        "staleness": "the agent chooses actions only while you call the sampler, so no batch is sampled between calls",
        "order": "its one worker returns trajectories in the order of their indices",
    },
)
"""The engine of `inference="parent"`, which starts its processes like another engine."""

STEPPING_ENGINES: tuple[EngineName, ...] = ("processes", "queues")
"""The engines for these processes and those of managers."""


def check_engine(name: str | None, start_method: StartMethod, options: Mapping[str, Any]) -> EngineName:
    """Return a valid engine, the default for None; `options` are arguments an engine may lack.

    Raises:
        UsageError: No such engine exists, or it cannot serve an argument.
        SamplerError: The engine does not run on this system.
    """
    asked = f'engine="{name}"'
    if name is None:
        asked = f'start_method="{start_method}"' if has_processes() else THIS_SYSTEM
        name = "processes" if has_processes() and start_method == "forkserver" else "queues"
    if name == "ray":
        raise UsageError('engine="ray" has a sampler of its own: use RaySampler')
    if name not in ENGINES:
        raise UsageError(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")
    able = ENGINES[name]
    if able.needs_linux and not has_processes():
        raise SamplerError(
            f'engine="{name}" needs Linux, with pidfds, to start and end its worker processes. Use engine="queues", or '
            "LocalSampler or SerialEnvManager in this process: they return the same results"
        )
    if "start_method" not in able.takes and start_method != default_start_method():
        raise UsageError(
            f'engine="{name}" does not support start_method={start_method!r}: omit it, or use engine="queues"'
        )
    if not hasattr(os, "fork") and start_method != "spawn":
        raise UsageError(f'start_method="{start_method}" does not work on this system: use "spawn"')
    able.refuse_lacking(asked, options)
    return name
