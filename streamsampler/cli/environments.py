"""Find the environment that a command names, and make one here to see its spaces."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium

from streamsampler.cli.current_directory import append_current_directory, warn_of_hidden
from streamsampler.cli.errors import failure
from streamsampler.cli.sampling_options import SamplingOptions
from streamsampler.environments.ids import is_pettingzoo_id
from streamsampler.environments.updates import EnvUpdate, as_env_update
from streamsampler.errors import UnknownEnvironmentError
from streamsampler.workers.explain import traceback_of

Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


def environment_of(options: SamplingOptions) -> tuple[EnvUpdate, Spaces]:
    """Return what makes the environment, and its observation space and action space.

    Raises:
        UnknownEnvironmentError: There is none of that name.
        click.ClickException: It cannot be made.
    """
    env = env_update_of(options.env_id, options.env_kwargs)
    return env, _spaces(options.env_id, env)


def env_update_of(env_id: str, env_kwargs: Mapping[str, Any]) -> EnvUpdate:
    """Return what makes the environment of an id, `module:id` included.

    Raises:
        UnknownEnvironmentError: There is none of that name.
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


def _spaces(env_id: str, update: EnvUpdate) -> Spaces:
    """Make an environment, here, to see its spaces."""
    try:
        env = update(None)
        try:
            return env.observation_space, env.action_space
        finally:
            env.close()
    except Exception as error:
        # Gymnasium's own errors say what to do; where they were raised says nothing more.
        details = "" if isinstance(error, gymnasium.error.Error) else traceback_of(error)
        message = f"the environment {env_id} cannot be made and closed: {type(error).__name__}: {error}"
        raise failure(message, details) from None
