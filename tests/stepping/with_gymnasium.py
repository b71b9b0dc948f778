"""Run Gymnasium's own tests of `AsyncVectorEnv` with `EnvManager(…, on_failure="raise").vector_env()` in its place.

They are in Gymnasium's repository, and not in its package: `python tests/stepping/with_gymnasium.py FOLDER`, where the
folder is a checkout of about the version that is installed. Each test runs twice. Those count that make such an
environment and pass with Gymnasium's; those that do not pass with this library's are named, with the reason.
"""

from __future__ import annotations

import sys
from typing import Any

import gymnasium
import gymnasium.vector.async_vector_env as gymnasiums
from comparing import Counts, compare, is_ours  # type: ignore[import-not-found]
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

FILES = ["async_vector_env", "autoreset_mode", "observation_mode", "vector_env", "vector_env_info"]
SEEDS = "each episode has a seed of its own, derived from the first one's, where Gymnasium's environments draw on"
TEXT = "another text: the error is of the same class"
REASONS = {
    "test_autoreset_disabled": SEEDS,
    "test_autoreset_next_step": SEEDS,
    "test_autoreset_within_step": SEEDS,
    "test_vector_env_equal": SEEDS,
    "test_random_seeding_basics": SEEDS,
    "test_invalid_observation_mode": TEXT,
    "test_obs_mode_same_different_spaces": TEXT,
    "test_partial_reset_failure": TEXT,
    "test_reset_out_of_order_async_vector_env": TEXT,
    "test_step_out_of_order_async_vector_env": TEXT,
    "test_action_count_compatibility": "the error is an ActionError, which is no ValueError",
    "test_async_vector_subenv_error": "the error is a RolloutError, which names the environment and has the original",
    "test_custom_space_async_vector_env_shared_memory": "any space works: nothing is refused",
    "test_no_copy_async_vector_env": "with copy=False observations are read-only views",
    "test_step_timeout_async_vector_env": "actions arrive as they are recorded: of the dtype of their space",
}


class Swapped(AsyncVectorEnv):
    """Counts the test that makes it; may be this library's."""

    def __new__(cls, env_fns: Any, *args: Any, **options: Any) -> Any:
        """Return this library's, where that is asked for."""
        Counts.count()
        return _ours(env_fns, *args, **options) if is_ours() else super().__new__(cls)

    def __del__(self) -> None:
        """Close it as Gymnasium does, unless it was never made."""
        if not is_ours():
            super().__del__()


def _ours(
    env_fns: Any, shared_memory: bool = True, copy: bool = True, *, observation_mode: Any = "same",
    autoreset_mode: Any = AutoresetMode.NEXT_STEP, **_: Any,
) -> Any:  # fmt: skip
    from streamsampler import EnvManager

    del shared_memory
    n_workers = min(2, len(env_fns))
    options: dict[str, Any] = {"n_workers": n_workers, "autoreset": autoreset_mode, "copy": copy}
    return EnvManager(list(env_fns), on_failure="raise", **options).vector_env(observation_mode=observation_mode)


def swap() -> None:
    """Put it wherever tests take Gymnasium's."""
    gymnasium.vector.AsyncVectorEnv = gymnasiums.AsyncVectorEnv = Swapped  # type: ignore[misc]


if __name__ == "__main__":
    sys.exit(compare(swap, [f"vector/test_{file}.py" for file in FILES], REASONS))
