"""Collect trajectories from Gymnasium environments in parallel, reproducibly.

Names that users need are imported from here:

```python
from streamsampler import MultiprocessingSampler

with MultiprocessingSampler("random", "CartPole-v1", seed=1) as sampler:
    batch = sampler.obtain_samples(10_000)
    print(batch, batch.observations.shape)
```

Five steps: train PPO, and evaluate it
--------------------------------------

*1. Install* the package with PyTorch, in a clone of the repository, and look whether it is there:

```sh
pip install '.[torch]'
streamsampler --version
```

```text
streamsampler 0.1.0
```

*2. Sample* 10,000 timesteps with random actions. The same seed gives the same numbers on any number of workers; times,
and what is left over, vary:

```sh
streamsampler sample CartPole-v1 --num-samples 10000 --seed 1
```

```text
environment   CartPole-v1
agent         random
trajectories  445
timesteps     10,000
return        22.47 ± 0.53 standard error, from 8 to 90
length        22.47, from 8 to 90
wall time     0.80 s, 12,450 timesteps per second
workers       2
seed          1
left over     0 stale, 0 surplus, 0 abandoned
```

*3. Train* with PPO. Save this as `cartpole.py`, and run it: `python cartpole.py`.

```python
import torch
from gymnasium.spaces import Discrete
from torch import nn

from streamsampler import MultiprocessingSampler
from streamsampler.adapters.torch import TorchAgent


def network(n_outputs: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, n_outputs))


def main() -> None:
    torch.set_num_threads(1)  # more do not pay for so small a network
    torch.manual_seed(1)
    actor, critic = network(2), network(1)
    adam = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
    with MultiprocessingSampler(TorchAgent(actor, Discrete(2)), "CartPole-v1", seed=1) as sampler:
        for iteration in range(15):
            batch = sampler.obtain_samples(2_000, agent_update=actor)
            returns = batch.returns
            print(f"iteration {iteration}: mean return {returns.mean():.1f} of {len(returns)} trajectories")
            data = batch.to_torch()  # a dict of tensors
            observations, actions, log_probs = data["observations"], data["actions"], data["agent_infos"]["log_prob"]
            with torch.no_grad():
                values, last_values = critic(observations)[:, 0], critic(data["last_observations"])[:, 0]
            advantages = batch.advantages(values, last_values, gamma=0.99, lambda_=0.95)
            targets = advantages + values
            for rows in batch.minibatches(200, seed=iteration, epochs=10):
                chosen = torch.distributions.Categorical(logits=actor(observations[rows]))
                ratios = (chosen.log_prob(actions[rows]) - log_probs[rows]).exp()
                scaled = (advantages[rows] - advantages[rows].mean()) / advantages[rows].std()
                gain = torch.min(scaled * ratios, scaled * ratios.clamp(0.8, 1.2)).mean()
                loss = nn.functional.mse_loss(critic(observations[rows])[:, 0], targets[rows]) / 2 - gain
                adam.zero_grad()
                loss.backward()
                adam.step()
    torch.save(actor.state_dict(), "actor.pt")


def trained() -> TorchAgent:
    actor = network(2)
    actor.load_state_dict(torch.load("actor.pt"))
    return TorchAgent(actor, Discrete(2), deterministic=True)


if __name__ == "__main__":
    main()
```

It prints:

```text
iteration 0: mean return 21.4 of 95 trajectories
iteration 1: mean return 27.9 of 72 trajectories
iteration 2: mean return 50.5 of 40 trajectories
…
iteration 14: mean return 500.0 of 4 trajectories
```

*4. Evaluate* what was trained, on exactly 100 trajectories. `--agent` names the function that makes the agent:

```sh
streamsampler evaluate CartPole-v1 --agent cartpole:trained --num-trajectories 100 --seed 1
```

```text
TorchAgent(Sequential, CategoricalHead) in CartPole-v1: 100 trajectories
  mean return           500  95 % [500, 500]  t
  standard deviation      0
  …
note: all returns are equal; with 95 % confidence at most 2.95 % of trajectories have another one
```

*5. Compare* it with another agent, on the same seeds:

```sh
streamsampler compare CartPole-v1 --agent random --agent cartpole:trained --num-trajectories 100 --seed 1
```

```text
random, cartpole:trained in CartPole-v1, on the same seeds
                      random  cartpole:trained
  trajectories           100               100
  mean return           21.9               500
  …
cartpole:trained minus random: 100 pairs
  difference of means         478.1  95 % [475.94, 479.87]  studentised bootstrap
  probability of improvement      1  95 % [1, 1]  percentile bootstrap of pairs
  …
```

The last digits of a network's numbers, and so the returns while it learns, may differ on another kind of processor.

Guides by task
--------------

The guides are docstrings: `help()` and `python -m pydoc` print them.

| to | read |
|---|---|
| sample whole trajectories or fragments, choose seeds, replay; handle failures | `streamsampler.samplers` |
| use what a batch holds: returns, advantages, minibatches | `streamsampler.data` |
| write an agent | `streamsampler.agents` |
| make environments, and change them from call to call | `streamsampler.environments` |
| use a policy of PyTorch or Stable-Baselines3 | `streamsampler.adapters` |
| normalise observations and rewards | `streamsampler.filters` |
| sample several agents in one environment | `streamsampler.workers.several` |
| run code at each timestep, in the workers | `streamsampler.workers.hooks` |
| run several environments in each worker | `streamsampler.workers.vec` |
| keep the agent in your own process, on its GPU | `streamsampler.stepping.inference` |
| step environments yourself | `streamsampler.stepping` |
| evaluate and compare agents | `streamsampler.evaluation` |
| check an environment and an agent | `streamsampler.checking` |
| choose a way to run them, and find the fastest | `streamsampler.checking.bench` |
| write and read files, and folders for more than fits into memory | `streamsampler.data.folder` |
| write Minari, Parquet, pandas or TensorDict | `streamsampler.formats` |
| sample on several machines | `streamsampler.samplers.ray` |
| use the command line | `streamsampler.cli` |
| come from another library | `streamsampler.examples.coming_from` |
| test your code against failures | `streamsampler.testing`; what is raised: `streamsampler.errors` |
| copy a whole program | `streamsampler.examples` |

How the package is built
------------------------

Requests go down, trajectories come up:

```text
    evaluate, compare, check, export, cli       evaluation  checking  formats  cli
          │ num_samples               ▲ batch
    calls of samplers                 │         samplers      stepping: the same for single steps
          │ tickets: indices, seeds   │
    where workers live                │         engines
          │ messages                  │ reports of whole trajectories
    loops that step and record ───────┘         workers
          │ action                    ▲ observation
    environment and agent, user code            environments  agents

    protocol: states, plans, tickets, restarts; pure        data: recording, batches, files        core: errors, seeds
```

Each name is a folder, which imports only from those below it. `testing` has faults for tests, `examples` has programs.

| question | place |
|---|---|
| how many trajectories does a ticket have | `streamsampler.protocol.tickets` |
| when is a batch complete | `streamsampler.protocol.gathering` |
| when is a dead worker replaced | `streamsampler.samplers.supervisor`, within `streamsampler.protocol.restarts` |
| where is an environment stepped | `streamsampler.workers.default`; several at once: `streamsampler.workers.vec` |
| where is an observation copied | `streamsampler.data.copying` |
| where is a hook called | `streamsampler.workers.hooks` |
| where does a shard get its name | `streamsampler.core.atomic` |
| which policy plays an agent | `streamsampler.workers.several.players` |

- A new *format* is one file in `streamsampler.formats`, one line in `FORMATS` of `streamsampler.formats.export`, and
  its name in the help of the command `export`, in `streamsampler.cli.files`.
- A new *engine* is one file in `streamsampler.engines` and, in `streamsampler.engines.registry`, its name in
  `EngineName` and one line in `ENGINES`. `Capabilities` there says what its class is called with.
- A new *kind of worker* is a class, which users pass as `worker_class`.
- A new *command* is one file in `streamsampler.cli`, with a function under `command` of `streamsampler.cli.options`,
  and its name in the list of commands in `streamsampler.cli.app`.

Workers and engines of your own
-------------------------------

The guides are `streamsampler.workers.base` (kinds of workers: `streamsampler.workers`) and `streamsampler.engines.base`
(what an engine is: `streamsampler.engines`). `streamsampler.protocol.states` has the states of both ends.

More is public for workers and engines of your own, the names in `__all__` of the modules that they use:
`streamsampler.workers.base`, `streamsampler.engines.base`, `streamsampler.workers.loop`, `streamsampler.workers.board`,
`streamsampler.workers.factory`, `streamsampler.workers.generators`, `streamsampler.protocol.messages`,
`streamsampler.protocol.plans`, `streamsampler.data.recorder`, `streamsampler.agents.base`,
`streamsampler.agents.draws`, `streamsampler.agents.independence`, `streamsampler.agents.updates`,
`streamsampler.environments.updates`, `streamsampler.core.seeding` and `streamsampler.core.serialization`.
"""

# `python -m streamsampler` puts the current directory first in `sys.path`, and `__main__` removes it. Until then this
# file imports nothing that a file in that directory, such as `typing.py`, could replace.
from importlib import import_module

from streamsampler.core.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from streamsampler.agents.base import Agent
    from streamsampler.agents.random import RandomAgent
    from streamsampler.checking.check import check
    from streamsampler.core import errors
    from streamsampler.core.errors import (
        ActionError,
        ClosedError,
        ConcurrentCallError,
        DamagedShardError,
        DataError,
        NotReproducibleError,
        ObservationError,
        ProtocolError,
        ResourceLimitError,
        RolloutError,
        SamplerError,
        SerializationError,
        StorageError,
        UnknownAgentError,
        UnknownArgumentError,
        UnknownEnvironmentError,
        UnwritableInfoError,
        UsageError,
        WorkerDiedError,
        WorkerError,
        WorkerHungError,
    )
    from streamsampler.core.timing import timed
    from streamsampler.data.batch import StepType, TrajectoryBatch
    from streamsampler.data.folder import TrajectoryFolder, load
    from streamsampler.data.multi_agent import MultiAgentBatch
    from streamsampler.environments.parameters import SetParameters
    from streamsampler.environments.updates import EnvUpdate, ExistingEnvUpdate, NewEnvUpdate, SetTaskUpdate
    from streamsampler.evaluation.compare import compare
    from streamsampler.evaluation.evaluate import evaluate
    from streamsampler.evaluation.merging import merge
    from streamsampler.evaluation.replay import replay
    from streamsampler.protocol.limits import Limits
    from streamsampler.samplers.base import Sampler
    from streamsampler.samplers.per_worker import PerWorker
    from streamsampler.samplers.processes import LocalSampler, MultiprocessingSampler
    from streamsampler.samplers.ray import RaySampler
    from streamsampler.samplers.sharded import sample_to_folder
    from streamsampler.stepping.managers import EnvManager, SerialEnvManager
    from streamsampler.stepping.steps import Steps
    from streamsampler.workers.base import Worker
    from streamsampler.workers.default import DefaultWorker
    from streamsampler.workers.factory import WorkerFactory
    from streamsampler.workers.loop import run_worker
    from streamsampler.workers.vec.worker import VecWorker

__all__ = [
    "ActionError",
    "Agent",
    "ClosedError",
    "ConcurrentCallError",
    "DamagedShardError",
    "DataError",
    "DefaultWorker",
    "EnvManager",
    "EnvUpdate",
    "ExistingEnvUpdate",
    "Limits",
    "LocalSampler",
    "MultiAgentBatch",
    "MultiprocessingSampler",
    "NewEnvUpdate",
    "NotReproducibleError",
    "ObservationError",
    "PerWorker",
    "ProtocolError",
    "RandomAgent",
    "RaySampler",
    "ResourceLimitError",
    "RolloutError",
    "Sampler",
    "SamplerError",
    "SerialEnvManager",
    "SerializationError",
    "SetParameters",
    "SetTaskUpdate",
    "StepType",
    "Steps",
    "StorageError",
    "TrajectoryBatch",
    "TrajectoryFolder",
    "UnknownAgentError",
    "UnknownArgumentError",
    "UnknownEnvironmentError",
    "UnwritableInfoError",
    "UsageError",
    "VecWorker",
    "Worker",
    "WorkerDiedError",
    "WorkerError",
    "WorkerFactory",
    "WorkerHungError",
    "__version__",
    "check",
    "compare",
    "errors",
    "evaluate",
    "load",
    "merge",
    "replay",
    "run_worker",
    "sample_to_folder",
    "timed",
]

# The module of each name but those of errors. Names are imported when they are used (PEP 562): a worker process needs
# less than half of the package, and its start is mostly imports.
_HOMES = {
    "Agent": "agents.base",
    "RandomAgent": "agents.random",
    "EnvUpdate": "environments.updates",
    "ExistingEnvUpdate": "environments.updates",
    "NewEnvUpdate": "environments.updates",
    "SetParameters": "environments.parameters",
    "SetTaskUpdate": "environments.updates",
    "WorkerFactory": "workers.factory",
    "TrajectoryFolder": "data.folder",
    "load": "data.folder",
    "Limits": "protocol.limits",
    "PerWorker": "samplers.per_worker",
    "LocalSampler": "samplers.processes",
    "MultiprocessingSampler": "samplers.processes",
    "RaySampler": "samplers.ray",
    "Sampler": "samplers.base",
    "sample_to_folder": "samplers.sharded",
    "check": "checking.check",
    "compare": "evaluation.compare",
    "evaluate": "evaluation.evaluate",
    "merge": "evaluation.merging",
    "replay": "evaluation.replay",
    "EnvManager": "stepping.managers",
    "SerialEnvManager": "stepping.managers",
    "Steps": "stepping.steps",
    "MultiAgentBatch": "data.multi_agent",
    "StepType": "data.batch",
    "TrajectoryBatch": "data.multi_agent",  # so that `TrajectoryBatch.load` knows batches of several agents
    "run_worker": "workers.loop",
    "Worker": "workers.base",
    "DefaultWorker": "workers.default",
    "VecWorker": "workers.vec.worker",
    "timed": "core.timing",
}


# What garage calls otherwise.
_TODAYS = {
    "EpisodeBatch": "TrajectoryBatch",
    "TimeStepBatch": "TrajectoryBatch",
    "TimeStep": "an item of TrajectoryBatch.time_steps()",
    "FragmentWorker": "obtain_fragments of a sampler",
    "BatchSampler": "LocalSampler",
    "OnPolicyVectorizedSampler": "LocalSampler with worker_class=VecWorker",
}


def __getattr__(name: str) -> "Any":
    if name in _TODAYS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}: here it is {_TODAYS[name]}")
    if name == "errors":  # for `except streamsampler.errors.…`
        return import_module(f"{__name__}.errors")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "core.errors")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
