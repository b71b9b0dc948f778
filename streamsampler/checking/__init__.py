"""Check an environment, and an agent in it, before they are sampled for hours.

```python
from streamsampler import check

report = check("CartPole-v1")
print(report)
```

```text
CartPole-v1 with random actions
  pass  made          in 0.03 s, in a process of its own
  …
```

`streamsampler check CartPole-v1 --agent my_agents:greedy` does the same from a terminal; its exit code is 1 where there
are failures. Each finding is a pass, a warning or a failure, with what to do:

| finding | what is looked at |
|---|---|
| made | the environment can be made in a worker process |
| runs | it runs with random actions, and neither raises, hangs nor ends its process |
| observations | they are in the observation space: structure, shape, bounds, no NaN |
| rewards | they are finite numbers |
| ends | trajectories end, within `ends_within` timesteps |
| wrappers | there is none that carries something from one trajectory to the next, or writes files |
| close | the environment closes |
| seed | trajectories come out the same when they are run twice, in one process; not of vector environments |
| processes | trajectories come out the same in another process, and in another order |
| Gymnasium, PettingZoo | what their own tests of environments find, as warnings |
| agent | it acts, and neither raises, hangs nor ends its process |
| actions | they are in the action space |
| rows | whether the rows of its batches depend on one another, as it says |
| workers | where none could be measured, several at the same time |

Everything runs in samplers, in worker processes with time limits; what there was no time for is "not checked".
In the end workers of several kinds are measured, as `streamsampler.checking.bench` does with these and other ways, and
the report recommends one. Figures mean little while the machine does other work.
"""
