"""What stands for an environment of another process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from streamsampler.workers.known_wrappers import EnvElsewhere, EnvFacts
from streamsampler.workers.resets import Resets

if TYPE_CHECKING:  # which makes them
    from streamsampler.stepping.inference.environments import Environments

__all__ = ["EnvProxy"]


class EnvProxy(EnvElsewhere):
    """Stands for an environment in another process.

    A step that was requested for many environments together is only waited for. One that was not is requested.

    Args:
        environments: All environments.
        env_id: The number of this one.
        observation_space: Its observation space.
        action_space: Its action space.
        facts: What is known of it.
    """

    def __init__(
        self, environments: Environments, env_id: int, observation_space: Any, action_space: Any, facts: EnvFacts
    ) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.facts = facts
        self.spec = SimpleNamespace(id=facts.name)  # type: ignore[assignment]
        self._environments, self._env_id = environments, env_id
        self.is_requested = False

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin a trajectory that is none of a call's."""
        assert seed is not None
        self.is_requested = False  # of a step that nothing was heard of
        self._environments.reset(self._env_id, 0, seed, None if options is None else Resets(options=options))
        return self.begun()

    def begun(self) -> tuple[Any, dict[str, Any]]:
        """Return what the reset returned that was requested."""
        observation, _, _, _, info = self._environments.result(self._env_id)
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Return what the step returned."""
        if self.is_requested:
            self.is_requested = False
        else:
            self._environments.step([self._env_id], [action])
        return self._environments.result(self._env_id)
