"""Step environments from the caller's process: in worker processes (`EnvManager`) or there (`SerialEnvManager`).

For policies that are large, sit on an accelerator or are a service, and for code that asks for steps. Where the agent
can live in the workers, a sampler does more for less: it needs no message for each step.

```python
from streamsampler import EnvManager

with EnvManager("CartPole-v1", n_envs=8, n_workers=2, seed=1) as manager:
    manager.async_reset()
    for _ in range(1000):
        steps = manager.recv(min_envs=4)
        actions = (steps.observations[:, 2] > 0).astype("int64")
        manager.send(actions, steps.env_ids)
```

*Synchronous or not.* `step` sends actions and waits for all results; the data are the same for any number of workers.
`send` and `recv` do not wait for slow environments: `recv(min_envs=k)` returns whatever is ready, k results at least.
Which results come together then depends on timing, but each episode is a function of its seed and its actions. Each
row of `Steps` has the action and the observation that led to it.

*Episodes.* Episode k of environment e has the seed of trajectory e + k * n_envs, unless `reset` is given a seed.
Environments are to draw from their own generator (`self.np_random`) alone: several share a process.

*Failures.* With `on_failure="raise"` an environment that raises, or whose worker dies or hangs, is an error that
names the environments, and the others go on. With `on_failure="reset"` the episodes end there, truncated and marked
in `Steps.failed`, and the environments begin new ones, in a new process if need be. A worker that dies takes the
episodes of all its environments along; those that awaited an action end with their next one.
"""
