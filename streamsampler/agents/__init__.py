"""Agents: what turns observations into actions.

An agent is an object with `get_action(observation) -> (action, agent_info)`, or a plain callable `observation ->
action`, or "random". `agent_info` is a dict of values that are recorded with the action. `streamsampler.Agent` lists
the optional methods; these are the two most used:

- `reset(seed=…)` is called at each trajectory's start. Draw random numbers from a generator that is made there, or from
  `random` and `numpy.random`, which are seeded for each trajectory.
- `set_param_values(values)` receives an `agent_update` that is a tuple, a dict or an array. An `agent_update` that is
  another agent, or a plain function, replaces the agent.

```python
import numpy as np
from numpy.typing import NDArray


class GaussianAgent:
    def __init__(self, weights: NDArray[np.float64]) -> None:
        self.weights = weights
        self.rng = np.random.default_rng()

    def reset(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def get_action(self, observation: NDArray[np.float32]) -> tuple[NDArray[np.float64], dict[str, object]]:
        mean = observation @ self.weights
        return self.rng.normal(mean), {"mean": mean}

    def set_param_values(self, weights: NDArray[np.float64]) -> None:
        self.weights = weights
```

`{"archer": agent, "knight": other}` are the policies of several agents in one environment: see
`streamsampler.workers.several`.

`VecWorker` asks an agent with `get_actions` for the actions of several environments at once. It is fastest with agents
that say `row_independent = True`: each row of a batch is computed from that row alone. What is random about a row then
comes from the keyword `draws`, which has a stream of numbers for each row's trajectory:

```python
import numpy as np
from numpy.typing import NDArray
from streamsampler.agents.draws import Draws


class BatchedGaussianAgent:
    row_independent = True

    def __init__(self, weights: NDArray[np.float64]) -> None:
        self.weights = weights

    def get_action(self, observation: NDArray[np.float32]) -> tuple[NDArray[np.float64], dict[str, object]]:
        return observation @ self.weights, {}

    def get_actions(
        self, observations: NDArray[np.float32], *, draws: Draws
    ) -> tuple[NDArray[np.float64], dict[str, object]]:
        means = observations @ self.weights
        return means + draws.normal(means.shape[1]), {"mean": means}
```

`streamsampler.agents.draws` has `Draws`. Workers check what an agent says of its rows, by changing some rows and
comparing the others bit for bit.

Masks of actions
----------------

An environment says which actions it allows in a timestep by a mask: under the key "action_mask" of its observation, or
of its info, or by a method `action_masks()` of the environment or one of its wrappers. The first that is there counts.
An agent gets it by declaring a keyword, `action_mask` of `get_action`, and `action_masks` of `get_actions`:

```python
import numpy as np
from numpy.typing import NDArray


class MaskedAgent:
    def reset(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def get_action(self, observation: object, *, action_mask: NDArray[np.bool_]) -> tuple[int, dict[str, object]]:
        return int(self.rng.choice(np.flatnonzero(action_mask))), {}
```

`action_mask` is one flat boolean array, the agent's to change, as Stable-Baselines3's MaskablePPO has it:

| action space | values of a mask |
|---|---|
| Discrete(n) | n, one for each action |
| MultiDiscrete | one for each value of each part, the parts one after the other |
| MultiBinary | two for each bit: whether it may be 0, and whether it may be 1 |

`action_masks` has a row for each observation, (n, k). All is True in a timestep without a mask; with actions of other
spaces the keyword is None. An environment may give a mask in any shape with so many values, booleans or zeros and ones,
a tuple with an array for each part included. A value under that name in another form is ignored, with one warning.

"random" draws among the allowed actions, and `SB3Agent` passes masks to policies whose `predict` takes `action_masks`.
Where an environment has several agents, each agent's mask is in its observation or in its info. An agent without the
keyword gets no mask, and `streamsampler.check` says so. With `inference="parent"` masks by a method are an error;
`EnvManager` and `SerialEnvManager` give no masks to your loop but those of observations and infos.

`streamsampler.adapters` makes agents of PyTorch modules and of Stable-Baselines3's models.

Agents travel to the workers by value: classes and functions of your main script, a notebook or an interactive session
need not be importable.
"""
