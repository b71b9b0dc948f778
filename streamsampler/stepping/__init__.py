"""Step environments from the caller's process: in worker processes (`EnvManager`) or there (`SerialEnvManager`).

For code that asks for steps. Where the agent can live in the workers, a sampler does more for less: it needs no message
for each step. `streamsampler.checking.bench` says when to use what, and how many workers.

```python
from streamsampler import EnvManager

with EnvManager("CartPole-v1", n_envs=8, n_workers=2, seed=1) as manager:
    manager.async_reset()
    for _ in range(1000):
        steps = manager.recv(min_envs=4)
        actions = (steps.observations[:, 2] > 0).astype("int64")
        manager.send(actions, steps.env_ids)
```

*When to use something else.* A manager seeds each episode by itself, holds values to their spaces, and records what it
needs to restore an environment. With steps that cost microseconds this is most of the time: for 8 CartPoles in one
process `SerialEnvManager.vector_env()` takes 2.7 times the CPU time of Gymnasium's `SyncVectorEnv`, `sb3_env()` three
times that of Stable-Baselines3's `DummyVecEnv` with a Monitor, and one `SyncVectorEnv` of 32 CartPoles is
faster than an `EnvManager` with two workers. Stay with those two where steps are cheap and none of this is needed.

*Synchronous or not.* `step` sends actions and waits for all results; the data are the same for any number of workers.
`send` and `recv` do not wait for slow environments: `recv(min_envs=k)` returns whatever is ready, k results at least.
Which results come together then depends on timing, but each episode is a function of its seed and its actions. Each
row of `Steps` has the action and the observation that led to it.

*Episodes.* Episode k of environment e has the seed of trajectory e + k * n_envs, unless `reset` is given a seed; with
`every_episode=True` all later ones begin with it, too. Environments are to draw from their own generator
(`self.np_random`) alone: several share a process. A function that makes environments may have the parameters
`env_number` and `worker_number`, for ports and files of its own; it must make a new environment each time.

*Batches.* `recorder = manager.recorder()` makes batches of whole episodes: `recorder.add(steps, agent_infos)` of what
each `reset`, `recv` and `step` returns, then `recorder.take(100)`. They are a sampler's for the same seeds and actions:
the episodes with the lowest indices, e + k * n_envs, so that short ones and quick environments are no more often in
them.

*Values.* What environments return and what they are sent is held to their spaces as in samplers: a number that would
become another one, a wrong shape, a reward or an end that is none is a `DataError` that says both. An action outside
its space, at which its environment raises, is an error of the caller, is not tried again, and counts as no failure.
Spaces may differ from environment to environment. Observations of spaces with one shape and dtype are stacked; else
`Steps` has K objects, each as its environment returned it, and a sequence of K actions is sent. Code that steps all
environments as one (`vector_env`, `sb3_env`) takes equal spaces only.

*Failures.* With `on_failure="restore"`, the default, an environment that raises, or whose worker dies or hangs, is made
anew, reset with the seed of its episode, and the actions so far are applied again. If the rewards and the last
observation are what they were, to the bit, the open step is tried again, and the episode goes on: its data are what
they would have been. If not, because the environment draws from more than its seed, the episode ends there, truncated
and marked in `Steps.failed`, with a warning that says why. An environment that fails in that step once more is an error
that names it: `reset([env_id])` begins its next episode, and the others go on meanwhile. All environments of a worker
that is lost are restored; those of other workers go on meanwhile. What `call` and `set_attr` did is repeated, at the
timesteps at which it was done. With `on_failure="reset"` such episodes end without that; with "raise" it is an error
that names the environments, and the others go on.

*Quotas.* Workers that die or hang, and environments that raise, count against `max_restarts` within
`limits.restart_window` seconds, and against `limits.max_lifetime_restarts` in all; what failed is tried again after
`restart_wait` seconds, while the others go on. A reset that fails is tried again until a quota is spent: in a new
object, or with `renew=False` in the same one. Where a quota is None, three equal failures of one environment (the class
of the exception, and the line) are an error, as in samplers. Workers that are lost while they start, with the processes
that start them too, count alike. A worker hangs that shows no progress for `step_timeout` seconds of the caller's
waiting (`reset_timeout` in a reset, `limits.construction_timeout` from its start until its environments are made); its
stacks are in the error. Log records of environments reach the loggers of this process. `close` gives all environments
`limits.close_timeout` seconds.
"""
