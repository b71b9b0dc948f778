"""CartPole-v1, many copies at once in one environment: Gymnasium's in NumPy, EnvPool's in C++, and one in JAX.

The last two need `pip install envpool jax flax`.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

__all__ = ["make_envpool_cartpole", "make_jax_cartpole", "make_numpy_cartpole"]

_LENGTH = 500


def make_numpy_cartpole(n_envs: int) -> VectorEnv:
    """Gymnasium's own vector environment, which begins a trajectory in the step after the last one's end."""
    return gymnasium.make_vec("CartPole-v1", num_envs=n_envs, vectorization_mode="vector_entry_point")


def make_envpool_cartpole(n_envs: int, seed: int = 0) -> VectorEnv:
    """EnvPool's, on one thread; it takes a seed here only, and not at `reset`."""
    import envpool

    return envpool.make_gymnasium("CartPole-v1", num_envs=n_envs, num_threads=1, seed=seed % 2**31)


def make_jax_cartpole(n_envs: int) -> VectorEnv:
    """Gymnasium's functional CartPole, on the CPU, each step compiled as a whole."""
    return JaxCartPole(n_envs)


class JaxCartPole(VectorEnv):
    """CartPole in JAX: an environment whose trajectory ends begins the next one in the same step."""

    def __init__(self, n_envs: int) -> None:
        import jax
        from gymnasium.envs.phys2d.cartpole import CartPoleFunctional

        self.num_envs = n_envs
        self.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.SAME_STEP}
        env = CartPoleFunctional()
        self.single_observation_space, self.single_action_space = env.observation_space, env.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(self.single_observation_space, n_envs)
        self.action_space = gymnasium.vector.utils.batch_space(self.single_action_space, n_envs)
        env.transform(jax.vmap)

        def first(key: Any) -> Any:
            key, *keys = jax.random.split(key, 2)
            state = env.initial(jax.random.split(keys[0], n_envs))
            return key, state, jax.numpy.zeros(n_envs, int)

        def step(key: Any, state: Any, steps: Any, action: Any) -> Any:
            unused = jax.random.split(key, n_envs)
            after = env.transition(state, action, unused)
            reward = env.reward(state, action, after, unused)
            steps = steps + 1
            terminated, truncated = env.terminal(after, unused), steps >= _LENGTH
            ended = terminated | truncated
            key, fresh, zeros = first(key)
            following = jax.numpy.where(ended[:, None], fresh, after)
            carried = key, following, jax.numpy.where(ended, zeros, steps)
            return carried, following, after, reward, terminated, truncated

        self._first, self._step = jax.jit(first), jax.jit(step)
        self._key_of = jax.random.PRNGKey
        self._carried: tuple[Any, Any, Any]

    def reset(self, *, seed: Any = None, options: dict | None = None) -> tuple[np.ndarray, dict]:
        """Begin all trajectories, from one seed."""
        del options
        if seed is not None and not isinstance(seed, int):
            raise TypeError("there is one seed for all environments")
        self._carried = self._first(self._key_of(0 if seed is None else seed % 2**32))
        return np.asarray(self._carried[1], np.float32), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict]:
        """Step all environments."""
        self._carried, *values = self._step(*self._carried, actions)
        observations, final, rewards, terminated, truncated = map(np.asarray, values)
        infos = {}
        ended = terminated | truncated
        if ended.any():
            infos = {"final_obs": final, "_final_obs": ended}
        return observations, rewards, terminated, truncated, infos
