"""Measure all the ways to step an environment with an agent, and recommend one: `streamsampler bench`.

```python
from streamsampler.benchmarking.bench import bench

print(bench("CartPole-v1", seconds=10))
```

The ways are: in this process; one worker for each core, with one environment or several, or a vector environment of the
environment's own kind, or several with one agent for all of them in this process; and stepped from this process, one
after the other, together (`EnvManager.step`), or each as soon as it is ready (`EnvManager.recv`). All are started
first, and then measured in turn in short rounds, so that what else the machine does meets all of them. While one is
measured the others sleep.

Each round begins with resets, which count, and ends with its last timestep. Rates are too low rather than too high
where trajectories are longer than a round. A rate from fewer than ten timesteps of each environment is said to be
uncertain, and a way whose first timesteps would come when the time is over is given up.
"""
