"""Find the environment that a command names, and make one here to see its spaces."""

from __future__ import annotations

from typing import Any

import gymnasium

from streamsampler.cli.current_directory import append_current_directory, warn_of_hidden
from streamsampler.cli.errors import failure, traceback_of
from streamsampler.cli.sampling_options import SamplingOptions
from streamsampler.environments.updates import EnvUpdate, as_env_update
from streamsampler.errors import UnknownEnvironmentError

__all__ = ["Spaces", "environment_of"]

Spaces = tuple[gymnasium.Space[Any], gymnasium.Space[Any]]


def environment_of(options: SamplingOptions) -> tuple[EnvUpdate, Spaces]:
    """Return what makes the environment, and its observation space and action space.

    Raises:
        UnknownEnvironmentError: There is none of that name.
        click.ClickException: It cannot be made.
    """
    try:
        env = _env_update(options)
    except UnknownEnvironmentError as error:
        raise UnknownEnvironmentError(f"{error} Or import it with --import.") from error.__cause__
    return env, _spaces(options.env_id, env)


def _env_update(options: SamplingOptions) -> EnvUpdate:
    module, colon, _ = options.env_id.rpartition(":")
    if not colon:
        return as_env_update(options.env_id, env_kwargs=options.env_kwargs)
    append_current_directory()
    update = as_env_update(options.env_id, env_kwargs=options.env_kwargs)
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
