"""Which engines of processes there are, and what each can do. Imports nothing that only POSIX has."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.engines.launch.start_methods import StartMethod, default_start_method, has_processes
from streamsampler.protocol.limits import LIMITS

if TYPE_CHECKING:  # the command's help is to come at once
    from streamsampler.engines.base import Engine

EngineName = Literal["processes", "queues"]

THIS_SYSTEM = "this system"


@dataclass(frozen=True)
class Capabilities:
    """What an engine can do.

    Attributes:
        made_by: The module and the class, called with `(n_workers, make_worker, seed, close_timeout=…, threads=…)`: how
            many workers, what makes one (pickled), and what `Limits` and `streamsampler.workers.threads` say of the
            others. With a limit `max_worker_memory` there is `report_memory=True`, unless that is in `lacks`.
        needs_linux: Whether it needs what only Linux has.
        takes: Further arguments of the sampler that the class is called with: "start_method", or none. Without it,
            other start methods than the default are refused.
        lacks: What it cannot do, by the sampler's argument that needs it, with the reason.
    """

    made_by: tuple[str, str]
    needs_linux: bool = False
    takes: frozenset[str] = frozenset()
    lacks: Mapping[str, str] = field(default_factory=dict)

    def load(self) -> Callable[..., Engine]:
        """Import the engine, which may need what not every system has."""
        module, name = self.made_by
        make: Callable[..., Engine] = getattr(importlib.import_module(f"streamsampler.{module}"), name)
        return make

    def refuse_lacking(self, asked: str, options: Mapping[str, Any]) -> None:
        """Refuse arguments that the engine lacks what they need for.

        Args:
            asked: The argument that the engine was asked for with; `THIS_SYSTEM` where there is no other engine.
            options: Other arguments and limits; None where one is not asked for.

        Raises:
            UsageError: There is one.
        """
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
        lacks={"max_worker_memory": "not every system tells how much memory a process has"},
    ),
}
"""All engines of processes; the first one that the system has what it needs for is the default.

What no argument needs, and `queues` cannot do: show the Python stacks of a worker that hangs while native code holds
the interpreter's lock; end what an environment started and what left the worker's process group, and any such process
on Windows; notice that an environment has forked the worker itself; run in a daemonic process; die at the places of
`streamsampler.testing.FailPoint`.
"""


RAY = Capabilities(("engines.ray", "RayEngine"), lacks={"start_method": "Ray starts the processes"})
"""The engine of Ray, which another sampler has: it needs Ray, and other arguments.

What no argument needs, and it cannot do: all that `queues` cannot do; show the Python stacks of a worker that is
stopped; end what an environment has started. Of a worker that died it knows what Ray says, which is no exit code. What
its last timesteps were it knows only as far as it asked, for progress or for `step_timeout`, and up to the last answer.
Environments do not run in the main thread, so they cannot set signal handlers, and what they print stays in Ray's logs.
"""


PARENT = Capabilities(
    ("stepping.inference.worker", "ParentEngine"),
    lacks={
        "max_worker_memory": "its processes have environments in which trajectories go on from ticket to ticket",
        "staleness": "the agent chooses actions only while you call the sampler, so no batch is sampled between calls",
        "order": "its one worker returns trajectories in the order of their indices",
    },
)
"""The engine of `inference="parent"`, which starts its processes as another one does."""

STEPPING_ENGINES: tuple[EngineName, ...] = ("processes", "queues")
"""What starts these processes and those of managers, and connects them."""


def check_engine(name: str | None, start_method: StartMethod, options: Mapping[str, Any]) -> EngineName:
    """Return a valid engine; None is the default one.

    Args:
        name: The name.
        start_method: How its processes are to be started.
        options: Arguments of the sampler that an engine may lack; None where it is not asked for.

    Raises:
        UsageError: There is no such engine, or it lacks what an argument needs.
        SamplerError: This system lacks what the engine needs.
    """
    asked = f'engine="{name}"'
    if name is None:
        asked = f'start_method="{start_method}"' if has_processes() else THIS_SYSTEM
        name = "processes" if has_processes() and start_method == "forkserver" else "queues"
    if name == "ray":
        raise UsageError('engine="ray" is another sampler: make a RaySampler')
    if name not in ENGINES:
        raise UsageError(f"engine must be one of {', '.join(ENGINES)}, got {name!r}")
    able = ENGINES[name]
    if able.needs_linux and not has_processes():
        raise SamplerError(
            f'engine="{name}" needs Linux: this system lacks what its worker processes are started and ended with. '
            'engine="queues" returns the same, and so do LocalSampler and SerialEnvManager, from this process alone'
        )
    if "start_method" not in able.takes and start_method != default_start_method():
        raise UsageError(
            f'engine="{name}" starts workers in its own way: leave start_method={start_method!r} to engine="queues"'
        )
    if not hasattr(os, "fork") and start_method != "spawn":
        raise UsageError(f"this system cannot {start_method}: start_method must be spawn")
    able.refuse_lacking(asked, options)
    return name
