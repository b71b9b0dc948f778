"""Group the arguments of samplers, managers and evaluations, in signatures and in `help`.

In the source, a docstring has a single "Args" section. `with_arguments_in_groups` replaces it with a section per group,
in the same order for every class and function.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import Any, TypeVar

GROUPS = {
    "What runs": (
        *("agents", "agent", "envs", "env", "n_envs", "env_kwargs", "policy_of", "max_episode_length", "max_episodes"),
        *("autoreset", "worker_class", "worker_args", "observation_filter", "reward_filter", "hooks", "sampler"),
        *("deterministic", "vec_normalize", "tasks"),
    ),
    "How much": (
        *("n_trajectories", "seeds", "scenarios", "until_halfwidth", "precision_of", "guarantee", "until_decided"),
        *("margin", "decide_on", "min_trajectories", "max_trajectories", "part", "num_trajectories"),
    ),
    "How many workers and where": (
        *(
            "n_workers",
            "open_envs",
            "worker_threads",
            "engine",
            "inference",
            "start_method",
            "ray_address",
            "worker_resources",
        ),
        *("runtime_env", "min_envs", "recv_timeout"),
    ),
    "Reproducible": ("seed", "order", "staleness", "check", "fingerprint", "own_generators"),
    "What is recorded": (
        *("drop_if", "record_taken", "abnormal", "copy", "success", "return_of", "bounds", "normalise", "out"),
        *("resume", "video", "video_of"),
    ),
    "When something fails": (
        *("on_failure", "step_timeout", "trajectory_timeout", "reset_timeout", "max_restarts", "restart_on"),
        *("restart_wait", "renew", "restore_limit", "verify", "limits"),
    ),
    "Other arguments": ("progress", "options"),
}
"""Argument names by the heading of their group."""

_PLACES = {name: place for place, name in enumerate(name for names in GROUPS.values() for name in names)}
_EXPLAINED: dict[Any, dict[str, str]] = {}
"""Explanations by class or function, then by argument name."""
Documented = TypeVar("Documented", bound=Callable[..., Any])


def with_arguments_in_groups(*others: type) -> Callable[[Documented], Documented]:
    """Rewrite the signature and docstring of a class or function with its arguments in groups; a decorator.

    Args:
        others: Decorated classes. Their explanations fill gaps in this docstring (missing, or "See `…`"); the first
            class's arguments replace its `**options`.
    """

    def decorate(documented: Documented) -> Documented:
        # A class inherits the signature written for its base class.
        called: Any = vars(documented).get("__init__", documented)
        own = dict(inspect.signature(called).parameters)
        own.pop("self", None)
        parameters = dict(inspect.signature(others[0]).parameters) if others else own
        parameters |= {name: it for name, it in own.items() if name not in parameters and it.kind is it.KEYWORD_ONLY}
        ordered = [parameters[name] for name in sorted(parameters, key=_place)]
        if isinstance(documented, type):
            documented.__signature__ = inspect.Signature(ordered)  # type: ignore[attr-defined]
        if not documented.__doc__:  # Python runs without docstrings
            return documented
        text, explained, rest = _parts(documented.__doc__)
        known: dict[str, str] = {}
        for each in (*(_EXPLAINED[other] for other in others), explained):
            known |= {name: text for name, text in each.items() if name not in known or ": See `" not in text}
        _EXPLAINED[documented] = known
        if unexplained := parameters.keys() - known.keys():
            raise LookupError(f"explain `{min(unexplained)}` under Args in the docstring of {documented.__name__}")
        groups = [
            f"{heading}:\n{''.join(known[name] for name in names if name in parameters).rstrip()}"
            for heading, names in GROUPS.items()
            if parameters.keys() & names
        ]
        documented.__doc__ = "\n\n".join([text, *groups, *rest])
        return documented

    return decorate


def _place(name: str) -> int:
    if name not in _PLACES:
        raise LookupError(f"give `{name}` a group in GROUPS of streamsampler/core/arguments.py")
    return _PLACES[name]


def _parts(doc: str) -> tuple[str, dict[str, str], list[str]]:
    """Split a docstring into text, explanations by argument name, and other sections."""
    text, *others = re.split(r"\n\n(?=Args:\n|Attributes:\n|Returns:\n|Raises:\n)", inspect.cleandoc(doc))
    arguments = next((section for section in others if section.startswith("Args:\n")), "")
    each = re.split(r"(?m)^(?=    \w+: )", arguments.removeprefix("Args:\n"))
    explained = {found.split(":")[0].strip(): found.rstrip() + "\n" for found in each if found}
    return text, explained, [section for section in others if section is not arguments]
