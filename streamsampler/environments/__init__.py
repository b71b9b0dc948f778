"""Environments: how they are given to samplers, and how they change between calls.

`envs` is an id for `gymnasium.make` ("module:id" imports the module first), a callable that makes an environment, an
environment, or an `EnvSpec`. `env_kwargs={…}` holds arguments for making the environment.

`env_update` of a call takes the same and replaces the environment; the old one is closed. It also takes a
`streamsampler.EnvUpdate`: `streamsampler.NewEnvUpdate` makes a new environment, `streamsampler.ExistingEnvUpdate` uses
the one it is given, which is what happens to a callable and to an environment; `streamsampler.SetTaskUpdate` makes an
environment or sets the task of the one that is there;
`streamsampler.SetParameters` sets parameters before each trajectory, constants and what is drawn from its seed:
`env_update=SetParameters({"mass": Uniform(1, 2), "length": 0.5})`, with `Uniform`, `LogUniform`, `Normal` and `Choice`
of this module. `obtain_trajectories(n, tasks=[…])` returns n trajectories of each task: of what `set_task` gets, or of
`SetParameters` with the same names. A subclass of your own must give an environment that depends on the update alone.

PettingZoo's environments of several agents are taken in all these forms, and as ids such as
`pettingzoo.sisl.pursuit_v5`: see `streamsampler.workers.several`.

A callable, or the entry point of an id, with a parameter `worker_number` is called with the worker's number, for ports,
file names and devices. A trajectory must not depend on it. `RecordVideo` needs it, or the workers overwrite each
other's videos (a warning says so):

```python
import gymnasium
from gymnasium.wrappers import RecordVideo

from streamsampler import MultiprocessingSampler


def make_env(worker_number: int) -> gymnasium.Env[Any, Any]:
    env = gymnasium.make("CartPole-v1", render_mode="rgb_array")
    return RecordVideo(env, f"videos/{worker_number}")


with MultiprocessingSampler("random", make_env, n_workers=2) as sampler:
    sampler.obtain_trajectories(10)
```

`PerEnv([…])` has one environment for each of those that a `streamsampler.VecWorker` runs side by side, such as eight
tasks that one agent learns together: trajectory i runs in environment i % n_envs.

```python
from functools import partial

import gymnasium

from streamsampler import MultiprocessingSampler, VecWorker
from streamsampler.environments import PerEnv

envs = PerEnv([partial(gymnasium.make, "Pendulum-v1", g=g) for g in (8.0, 9.0, 10.0)])
with MultiprocessingSampler("random", envs, worker_class=VecWorker, worker_args={"n_envs": 3}) as sampler:
    sampler.obtain_trajectories(6)
```

An environment is closed with its worker; `streamsampler.samplers` says what becomes of processes that it started.
"""

from streamsampler.environments.parameters import Choice, Distribution, LogUniform, Normal, Uniform
from streamsampler.environments.per_env import PerEnv

__all__ = ["Choice", "Distribution", "LogUniform", "Normal", "PerEnv", "Uniform"]
