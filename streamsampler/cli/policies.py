"""Policies of environments of several agents: their options, and their agents."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import click

from streamsampler.cli.grouping import grouped_option, options_of
from streamsampler.cli.shared_options import DETERMINISTIC, NAMED_AGENTS, STATISTICS

_NAMED = re.compile(r"(?P<name>[\w-]+)=(?P<agent>.+)", re.DOTALL)

POLICY_OF = grouped_option(
    "What", "--policy-of", multiple=True, metavar="AGENT=POLICY",
    help="Which policy plays an agent of an environment of several; may be repeated, then for all agents.",
)  # fmt: skip

POLICIES = options_of(
    grouped_option(
        "What", "--agent", multiple=True, default=("random",), show_default=True, metavar="[POLICY=]NAME",
        help=f"What chooses the actions: {NAMED_AGENTS} For several agents in one environment (PettingZoo's), once "
        "for each policy, with its name: --agent archer=random --agent knight=my_agents:make. An agent is played by "
        "the policy whose name is its id, or its id up to the last '_'.",
    ),
    POLICY_OF,
    grouped_option(
        "What", "--aec", is_flag=True,
        help="Where ENV_ID is a module of PettingZoo: its env, whose agents take turns, also where it has a "
        "parallel_env.",
    ),
    STATISTICS, DETERMINISTIC,
)  # fmt: skip
"""Which agent, or which policies."""

RETURN_OF = grouped_option(
    "What", "--return-of", multiple=True, metavar="AGENT|POLICY|all",
    help="In environments of several agents: whose return counts. May be repeated, for a team.",
)  # fmt: skip


def take_policies(options: dict[str, Any], env_id: str) -> str:
    """Put what was said of agents and policies into the options `agent`, `policies` and `policy_of`.

    Args:
        options: All options of a command; they are changed.
        env_id: The environment that was asked for.

    Returns:
        The environment's id.

    Raises:
        click.BadParameter: There are several agents, and they have no names, or one has no such form.
    """
    given: tuple[str, ...] = options["agent"]
    pairs = [_pair(text) for text in given]
    options["policies"] = None
    if len(given) > 1 or (pairs and pairs[0] is not None):
        if None in pairs:
            raise click.BadParameter(
                f"{given[pairs.index(None)]!r} has no name: of several agents each is a policy, POLICY=NAME",
                param_hint="--agent",
            )
        options["policies"] = _as_dict(filter(None, pairs), "--agent")
    options["agent"] = ", ".join(given) or None
    options["policy_of"] = _policy_of(options["policy_of"])
    if not options.pop("aec", False):
        return env_id
    if env_id.rpartition(":")[2] == "env":
        return env_id
    if not re.fullmatch(r"[\w.]+(:parallel_env)?", env_id):
        raise click.BadParameter(
            f"{env_id} is no module of PettingZoo's, such as pettingzoo.classic.chess_v6", param_hint="--aec"
        )
    return f"{env_id.removesuffix(':parallel_env')}:env"


def _pair(text: str) -> tuple[str, str] | None:
    match = _NAMED.fullmatch(text)
    return None if match is None or Path(text).is_file() else (match["name"], match["agent"])


def _policy_of(texts: Iterable[str]) -> Mapping[str, str] | None:
    pairs = []
    for text in texts:
        agent, equals, name = text.partition("=")
        if not (agent and equals and name):
            raise click.BadParameter(f"{text!r} is not of the form AGENT=POLICY", param_hint="--policy-of")
        pairs.append((agent, name))
    return _as_dict(pairs, "--policy-of") or None


def _as_dict(pairs: Iterable[tuple[str, str]], option: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in pairs:
        if name in found:
            raise click.BadParameter(f"{name!r} is given twice", param_hint=option)
        found[name] = value
    return found
