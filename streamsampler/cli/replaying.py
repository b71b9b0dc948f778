"""Carry out `streamsampler replay`: run a trajectory again, and print what came of it."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from streamsampler.agents.policies import SHARED
from streamsampler.cli.current_directory import append_current_directory, import_named, warn_of_hidden
from streamsampler.cli.environments import Spaces
from streamsampler.cli.errors import failure, translated
from streamsampler.cli.interrupts import Interrupted, Interrupts
from streamsampler.cli.models import load_any_agent
from streamsampler.cli.notices import notices_shown
from streamsampler.cli.streams import print_error, print_result, stdout_reserved
from streamsampler.data.differences import shown
from streamsampler.environments.ids import find_spec, is_pettingzoo_id
from streamsampler.errors import UsageError
from streamsampler.evaluation.replay import replay
from streamsampler.samplers.progress import output_on
from streamsampler.samplers.replays import Replay
from streamsampler.storage import npz as storage
from streamsampler.storage.codec import decode_space
from streamsampler.storage.manifest import shard_name
from streamsampler.workers.vec.worker import VecWorker

_PASS = re.compile(r"\b([Pp])ass (agent|env|worker_class|worker_args)=")
_GIVE = {"agent": "--agent ", "env": "--env ", "worker_args": "--vec "}
_GIVEN = ("max_episode_length", "worker_threads")


def execute(
    ctx: click.Context, path: Path, imports: Iterable[str], options: Mapping[str, Any], *, as_json: bool, quiet: bool
) -> None:
    """Run a trajectory again, print what came of it, and exit: with 1 if it differs.

    Args:
        ctx: The command's context.
        path: The file or the folder.
        imports: Modules to import before.
        options: The other options, by their names.
        as_json: Whether to print JSON.
        quiet: Whether to print nothing on standard error but errors.
    """
    bar = output_on(sys.stderr, hidden=quiet, last_line=False, doing="replaying")
    interrupts = ctx.find_object(Interrupts) or ctx.with_resource(Interrupts())
    try:
        with stdout_reserved(), translated(), _options_named(), notices_shown(bar, quiet=quiet):
            for name in imports:
                import_named(name, f"--import {name}")
            found = _replay(path, options)
    except Interrupted:
        print_error("Interrupted: nothing was kept.")
        ctx.exit(interrupts.exit_code)
    print_result(json.dumps(_facts(found), allow_nan=False) if as_json else str(found), kept=found.video)
    ctx.exit(interrupts.exit_code or int(not found.same))


def _replay(path: Path, options: Mapping[str, Any]) -> Replay:
    how: dict[str, Any] = {name: options[name] for name in _GIVEN if options[name] is not None}
    if options["vec"] is not None:
        how |= {"worker_class": VecWorker, "worker_args": {"n_envs": options["vec"]}}
    if options["env_kwargs"]:
        how["env_kwargs"] = options["env_kwargs"]
    env = options["env"]
    if env is not None and ":" in env:
        append_current_directory()
        if not is_pettingzoo_id(env):
            find_spec(env)
        warn_of_hidden(env.rpartition(":")[0])
    if options["policy_of"]:
        how["policy_of"] = options["policy_of"]
    agent = None if options["agent"] is None else _agent(path, options)
    try:
        return replay(
            path, options["index"], agent=agent, env=env, version=options["version"], actions=options["actions"],
            video=options["video"], **how,
        )  # fmt: skip
    except ImportError as error:
        raise failure(f"--video: {error}") from None


def _agent(path: Path, options: Mapping[str, Any]) -> Any:
    """Return the agent that `--agent` names, or those of policies by name.

    Raises:
        UsageError: It is for other spaces, or the file has no policy of that name.
    """
    header = storage.read(path / shard_name(0) if path.is_dir() else path)[1]
    said, given = header.get("policies"), options["policies"]

    def load(name: str, spaces: Mapping[str, Any]) -> Any:
        known: Spaces = decode_space(spaces["observation_space"]), decode_space(spaces["action_space"])
        return load_any_agent(name, options["vec_normalize"], known, options["deterministic"])

    if given is None:
        return load(options["agent"], (said[SHARED] if said and SHARED in said else header)["spaces"])
    if not said or (unknown := sorted(given.keys() - said.keys())):
        there = ", ".join(map(repr, said or ())) or "none"
        raise UsageError(
            f"--agent POLICY=NAME: {path} has no policy {(unknown if said else [*given])[0]!r}; it has {there}"
        )
    return {policy: load(name, said[policy]["spaces"]) for policy, name in given.items()}


@contextmanager
def _options_named() -> Iterator[None]:
    """Call arguments by the names of their options in errors about them."""
    try:
        yield
    except UsageError as error:
        text = _PASS.sub(_as_option, str(error)).replace("actions=True", "--actions")
        text = text.replace("give version", "give --agent-version").replace("--agent ,", "--agent,")
        raise UsageError(text) from error.__cause__


def _as_option(match: re.Match[str]) -> str:
    option = _GIVE.get(match[2])
    return match[0] if option is None else f"{'Give' if match[1] == 'P' else 'give'} {option}"


def _facts(found: Replay) -> dict[str, Any]:
    """Return what came of it for programs."""
    trajectory, difference = found.trajectory, found.difference
    return {
        "trajectory": int(trajectory.indices[0]),
        "agent_version": int(trajectory.agent_versions[0]),
        "seed": trajectory.seeds[0],
        "timesteps": trajectory.n_timesteps,
        "return": float(trajectory.returns[0]),
        "same": found.same,
        "difference": None if difference is None else {
            "timestep": difference.timestep,
            "what": difference.what,
            "path": difference.path,
            "recorded": shown(difference.recorded),
            "replayed": shown(difference.replayed),
        },
        "reasons": list(found.reasons),
        "notes": list(found.notes),
        "video": None if found.video is None else str(found.video),
    }  # fmt: skip
