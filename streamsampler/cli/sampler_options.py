"""Turn options into arguments of samplers, and into entries of files."""

from __future__ import annotations

import json
import secrets
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from streamsampler.core.errors import UsageError
from streamsampler.engines.registry import RAY
from streamsampler.protocol.limits import Limits
from streamsampler.workers.factory import usable_cores
from streamsampler.workers.vec.worker import VecWorker

_IN_ALL = 10
"""The quota of losses in a run, as a multiple of the quota within a minute."""
_OF_ALL_SAMPLERS = ("max_episode_length", "on_failure", "trajectory_timeout", "worker_threads", "fingerprint")
_NEED_PROCESSES = ("engine", "start_method", "step_timeout", "ray_address")


def command_line(typed: Sequence[str], *options: str) -> str:
    """Return the typed command as a line for a shell: its name, its arguments, and further options."""
    name, *arguments = typed
    return f"{name} {shlex.join([*options, *arguments] if '--' in arguments else [*arguments, *options])}"


def drawn_seed() -> int:
    """Return a seed that every JSON reader reads exactly."""
    return secrets.randbits(53)


def sampler_arguments(options: Mapping[str, Any], seed: int | None) -> dict[str, Any]:
    """Return the arguments of `streamsampler.evaluation.agents.make_sampler` besides agent and environment.

    Args:
        options: The options of all commands that run an environment, by name.
        seed: The seed.

    Raises:
        UsageError: An option needs worker processes, or Ray, and the request excludes them.
    """
    arguments = {"seed": seed, **{name: options[name] for name in _OF_ALL_SAMPLERS}}
    if options.get("policy_of") is not None:
        arguments["policy_of"] = options["policy_of"]
    arguments |= _worker_arguments(options["vec"], options["in_flight"])
    given = {name: options[name] for name in _NEED_PROCESSES if options[name] is not None}
    memory = options["max_worker_memory"]
    if options["workers"] == 0:
        names = [*given, *([] if memory is None else ["max_worker_memory"])]
        if names:
            useless = " and ".join(f"--{name.replace('_', '-')}" for name in names)
            raise UsageError(f"{useless} needs worker processes: give --workers 1 or more")
        return {**arguments, "n_workers": 0}
    quota = options["max_restarts"]
    in_all = _IN_ALL * quota if isinstance(quota, int) else quota
    limits = Limits(max_lifetime_restarts=in_all, close_timeout=options["close_timeout"], max_worker_memory=memory)
    arguments |= {"n_workers": options["workers"] or usable_cores(), "max_restarts": quota, "limits": limits, **given}
    if options["engine"] == "ray":
        RAY.refuse_lacking('engine="ray"', arguments)
    elif "ray_address" in given:
        raise UsageError("--ray-address needs --engine ray")
    return arguments


def _worker_arguments(vec: int | None, in_flight: int | None) -> dict[str, Any]:
    if vec is not None and in_flight is not None:
        raise UsageError(
            "--vec asks an agent for many actions at once, --in-flight for a single action: give only one of them"
        )
    if vec is not None:
        return {"worker_class": VecWorker, "worker_args": {"n_envs": vec}}
    return {} if in_flight is None else {"worker_args": {"in_flight": in_flight}}


def storable(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments as JSON values; others, such as sets, as their `repr`."""
    return {key: value if _fits_json(value) else _text_of(value) for key, value in arguments.items()}


def _text_of(value: Any) -> str:
    # The order of a set of strings differs from process to process.
    if isinstance(value, set) and value:
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    return repr(value)


def _fits_json(value: Any) -> bool:
    try:
        return bool(json.loads(json.dumps(value, allow_nan=False)) == value)
    except (TypeError, ValueError, RecursionError):
        return False
