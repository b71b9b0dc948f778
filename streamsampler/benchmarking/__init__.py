"""Choose a way to step an environment with an agent, and measure all of them: `streamsampler bench`.

| agent, or code | take | because |
|---|---|---|
| it acts quickly, or on one observation at a time | a sampler | no step needs a message |
| a network on the CPU | `worker_class=VecWorker` | each worker calls it once for several environments |
| a large network, on an accelerator, or a service | `inference="parent"` | there is one, in your process |
| a loop that asks for steps itself | `EnvManager` | `step` takes all, `recv` those that are ready |
| a loop that is written for `gymnasium.vector.VectorEnv` | `EnvManager.vector_env` | it has the same calls |
| a library that takes Stable-Baselines3's `VecEnv` | `EnvManager.sb3_env` | it has the same calls |
| anything that is to stay in this process | `LocalSampler`, `SerialEnvManager` | they return the same |

On two cores a sampler takes about four times as many steps of CartPole-v1 as a manager, which sends messages for them.
Environments of one process are stepped one after the other, whichever way. So where steps sleep, or wait for another
machine, as many processes as environments pay (`n_workers=n_envs` of a manager), however few cores there are. And a
slow reset holds up the other environments of its process: these want processes of their own, too. `EnvManager.recv` and
`inference="parent"` go on with others meanwhile.

```python
from streamsampler.benchmarking.bench import bench

print(bench("CartPole-v1", seconds=10))
```

The ways are: in this process; one worker for each core, with one environment or several, or a vector environment of the
environment's own kind, or several with one agent for all of them in this process; and stepped from this process, one
after the other, together (`EnvManager.step`), or each as soon as it is ready (`EnvManager.recv`). There are more
processes than cores where environments wait. All are started first, and then measured in turn in short rounds, so that
what else the machine does meets all of them. While one is measured the others sleep.

Each round begins with resets, which count, and ends with its last timestep. Rates are too low rather than too high
where trajectories are longer than a round. A rate from fewer than ten timesteps of each environment is said to be
uncertain, and a way whose first timesteps would come when the time is over is given up.
"""
