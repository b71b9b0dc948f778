"""Make the environments that users name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium
from gymnasium.spaces import Space

from streamsampler.cli.modules import append_current_directory, warn_of_hidden
from streamsampler.cli.streams import failure
from streamsampler.core.errors import UnknownEnvironmentError
from streamsampler.environments.closing import close_env
from streamsampler.environments.ids import is_pettingzoo_id
from streamsampler.environments.multi_agent import OpenSpaces, SpacesOfAgents
from streamsampler.environments.updates import EnvUpdate, as_env_update
from streamsampler.workers.explain import traceback_of

Spaces = tuple[Space[Any], Space[Any]]
"""The environment's observation space and action space."""


def environment_of(env_id: str, env_kwargs: Mapping[str, Any]) -> tuple[EnvUpdate, Spaces]:
    """Return the maker of an id's environment, and its spaces, from an environment made in this process.

    Raises:
        UnknownEnvironmentError: No environment has this id.
        click.ClickException: Making the environment fails.
    """
    update = env_update_of(env_id, env_kwargs)
    try:
        env = update(None)
        try:
            return update, _spaces_of(env)
        finally:
            close_env(env)
    except Exception as error:
        # Gymnasium's own errors say what to do, and their traceback adds nothing.
        details = "" if isinstance(error, gymnasium.error.Error) else traceback_of(error)
        message = f"the environment {env_id} cannot be made and closed: {type(error).__name__}: {error}"
        if isinstance(error, AttributeError) and error.name in ("close", "render", "metadata"):
            message += f". Define {error.name} in its class, or derive it from pettingzoo.ParallelEnv or AECEnv"
        raise failure(message, details) from None


def _spaces_of(env: Any) -> Spaces:
    """Return the spaces of an environment; if any agents may appear, of the agents after a reset."""
    if isinstance(env.observation_space, OpenSpaces):
        env.reset(seed=0)
        of_both = [
            SpacesOfAgents([(it, of[it]) for it in env.numbers]) for of in (env.observation_space, env.action_space)
        ]
        return of_both[0], of_both[1]
    return env.observation_space, env.action_space


def env_update_of(env_id: str, env_kwargs: Mapping[str, Any]) -> EnvUpdate:
    """Return the maker of an id's environment, `module:id` included.

    Raises:
        UnknownEnvironmentError: No environment has this id.
    """
    module, colon, _ = env_id.rpartition(":")
    if colon:
        append_current_directory()
    try:
        update = as_env_update(env_id, env_kwargs=env_kwargs)
    except UnknownEnvironmentError as error:
        hint = "" if colon or is_pettingzoo_id(env_id) else " Or import it with --import."
        raise UnknownEnvironmentError(f"{error}{hint}") from error.__cause__
    if colon:
        warn_of_hidden(module)
    return update
