"""Reset an environment that is vectorised natively, in each of Gymnasium's autoreset modes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

from streamsampler.environments.updates import AnyVectorEnv
from streamsampler.errors import UsageError
from streamsampler.workers.base import Worker

__all__ = ["DISABLED", "NEXT_STEP", "SAME_STEP", "NativeEnv"]

NEXT_STEP, SAME_STEP, DISABLED = "NEXT_STEP", "SAME_STEP", "DISABLED"


class NativeEnv:
    """A `gymnasium.vector.VectorEnv`, whose environments are a worker's slots.

    Args:
        env: The environment.
        worker: The worker, which has the seeds and the reset options that a call was given.

    Attributes:
        env: The environment.
        mode: Its autoreset mode: NEXT_STEP, SAME_STEP or DISABLED.

    Raises:
        UsageError: There is a limit to trajectories' lengths, which only the mode DISABLED can take.
    """

    def __init__(self, env: AnyVectorEnv, worker: Worker) -> None:
        self.env = env
        self._worker = worker
        self._takes_one_seed = False  # seen at a reset: the environment draws for all slots from one seed
        mode = (env.metadata or {}).get("autoreset_mode", NEXT_STEP)
        self.mode = str(getattr(mode, "name", mode))
        if self.mode not in (NEXT_STEP, SAME_STEP, DISABLED):
            raise UsageError(f"the vector environment has the autoreset mode {mode!r}, which is none of Gymnasium's")
        if worker.context.max_episode_length is not None and self.resets_itself:
            raise UsageError(
                f"max_episode_length needs a vector environment with AutoresetMode.DISABLED; this one has "
                f"{self.mode}, so that only it can end a trajectory. Give the environment its own limit, as "
                "gymnasium.make_vec(…, max_episode_steps=…) does"
            )

    @property
    def resets_itself(self) -> bool:
        """Whether the environment begins trajectories by itself."""
        return self.mode != DISABLED

    @property
    def n_slots(self) -> int:
        """How many trajectories run side by side."""
        return int(self.env.num_envs)

    @property
    def spaces(self) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
        """Observation and action space of one environment."""
        return self.env.single_observation_space, self.env.single_action_space

    def reset(self, seeds: list[int]) -> Any:
        """Reset all slots, from one seed for each; from the first seed, where the environment takes no list.

        Raises:
            UsageError: The environment takes no list, and the seeds are those that a call was given; or the options
                are one dict for each trajectory.
        """
        given: Any = seeds
        options = self._options()
        if not self._takes_one_seed:
            try:
                return self.env.reset(seed=given, **options)
            except Exception as refused:
                # Many native environments draw for all slots from one generator, and refuse a list.
                try:
                    result = self.env.reset(seed=seeds[0], **options)
                except Exception as error:
                    raise error from refused
                self._takes_one_seed = True
                self._refuse_given_seeds()
                return result
        self._refuse_given_seeds()
        return self.env.reset(seed=seeds[0], **options)

    def reset_slots(self, seeds: list[int], mask: NDArray[np.bool_]) -> Any:
        """Reset the slots of a mask, each from its seed."""
        # One seed for all would be the other slots' seed, too.
        given: Any = None if self._takes_one_seed else seeds
        options = {**self._options().get("options", {}), "reset_mask": mask}
        return self.env.reset(seed=given, options=options)

    def _options(self) -> dict[str, Any]:
        """Return what `reset` gets besides seeds: the options of the call, if there are any."""
        resets = self._worker.resets
        return {} if resets is None else resets.vector_arguments

    def _refuse_given_seeds(self) -> None:
        resets = self._worker.resets
        if resets is not None and resets.seeds is not None and self.n_slots > 1:
            raise UsageError(
                "seeds needs a vector environment whose reset takes a list with one for each environment; "
                f"{type(self.env.unwrapped).__qualname__} takes one for all"
            )
