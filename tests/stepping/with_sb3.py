"""Run Stable-Baselines3's own tests with `sb3_env()` of managers in place of `DummyVecEnv` and `SubprocVecEnv`.

They are in its repository, and not in its package: `python tests/stepping/with_sb3.py FOLDER`, where the folder is a
checkout of about the version that is installed. Each test runs twice. Those count that make such an environment,
themselves or through an algorithm, and pass with Stable-Baselines3's; those that do not pass with this library's are
named, with the reason. More arguments choose files, as `test_vec_envs.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import stable_baselines3
from comparing import Counts, compare, is_ours  # type: ignore[import-not-found]
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

FIRST = "a step before the first reset is an error"
SHAPE = "actions of another shape than one for each environment are an error"
REASONS = {
    "test_check_nan": f"{FIRST}; and {SHAPE}",
    "test_framestack_vecenv": FIRST,
    "test_device_buffer": SHAPE,
    "test_replay_buffer_normalization": SHAPE,
    "test_dict_nested": "any space works: the algorithm refuses nested ones, the environments do not",
    "test_performance_her": "each episode has a seed of its own; theirs, too, learns so much from few of the seeds",
    "test_subproc_start_method": "another text: the error of an unknown start method is a ValueError, too",
}


def swapped(theirs: type[VecEnv]) -> type[VecEnv]:
    """Return a class for the place of theirs, which counts the test that makes it."""
    base = (_in_process if theirs is DummyVecEnv else _in_workers)() if is_ours() else theirs

    def __init__(self: Any, *args: Any, **options: Any) -> None:
        Counts.count()
        base.__init__(self, *args, **options)

    return type(theirs.__name__, (base,), {"__init__": __init__})


OPTIONS: dict[str, Any] = {"autoreset": "same_step", "on_failure": "raise"}


def _in_process() -> type[VecEnv]:
    from streamsampler import SerialEnvManager
    from streamsampler.stepping.sb3_env import ManagedVecEnv

    class InProcess(ManagedVecEnv):
        def __init__(self, env_fns: list[Callable[[], Any]]) -> None:
            self.envs: list[Any] = []  # some tests look at them
            super().__init__(SerialEnvManager([partial(self._made, make) for make in env_fns], **OPTIONS))

        def _made(self, make: Callable[[], Any]) -> Any:
            self.envs.append(make())
            return self.envs[-1]

    return InProcess


def _in_workers() -> type[VecEnv]:
    from streamsampler import EnvManager
    from streamsampler.stepping.sb3_env import ManagedVecEnv

    class InWorkers(ManagedVecEnv):
        def __init__(self, env_fns: list[Callable[[], Any]], start_method: Any = None) -> None:
            n_workers = min(2, len(env_fns))
            super().__init__(EnvManager(list(env_fns), n_workers=n_workers, start_method=start_method, **OPTIONS))

    return InWorkers


def swap() -> None:
    """Put them wherever Stable-Baselines3 has its own."""
    modules = [module for name, module in sys.modules.items() if name.startswith(stable_baselines3.__name__)]
    for theirs in (DummyVecEnv, SubprocVecEnv):
        ours = swapped(theirs)
        for module in modules:
            if getattr(module, theirs.__name__, None) is theirs:
                setattr(module, theirs.__name__, ours)


if __name__ == "__main__":
    sys.exit(compare(swap, ["."], REASONS, stand_ins=["ale_py"]))
