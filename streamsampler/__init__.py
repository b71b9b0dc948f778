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

*1. Install* the package with PyTorch, in a clone of the repository:

```sh
pip install '.[torch]'
```

*2. Sample* 10,000 timesteps with random actions:

```sh
streamsampler sample CartPole-v1 --num-samples 10000 --seed 1 --workers 2
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
    torch.set_num_threads(1)  # a network of this size is slower on several threads
    torch.manual_seed(1)
    actor, critic = network(2), network(1)
    adam = torch.optim.Adam([*actor.parameters(), *critic.parameters()], lr=1e-3)
    with MultiprocessingSampler(TorchAgent(actor, Discrete(2)), "CartPole-v1", seed=1) as sampler:
        for iteration in range(10):
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

It prints a mean return of 21.4 in the first iteration, and of some hundreds in the last.

*4. Evaluate* the trained agent on exactly 50 trajectories. `--agent` names the function that makes the agent:

```sh
streamsampler evaluate CartPole-v1 --agent cartpole:trained --num-trajectories 50 --seed 1
```

*5. Compare* it with another agent, from the same seeds:

```sh
streamsampler compare CartPole-v1 --agent random --agent cartpole:trained --num-trajectories 50 --seed 1
```

The page `streamsampler/docs/start.md` shows their output.

Pages
-----

Pages in Markdown come with the package, in the folder `docs` (`streamsampler.__path__[0] + "/docs"`):

| to | read |
|---|---|
| find the call for your job | `streamsampler/docs/which-way.md` |
| sample whole trajectories, choose seeds, replay | `streamsampler/docs/sampling.md` |
| sample a fixed number of timesteps of each environment | `streamsampler/docs/fragments.md` |
| use a batch: returns, advantages, minibatches | `streamsampler/docs/batches.md` |
| write an agent; use PyTorch or Stable-Baselines3 | `streamsampler/docs/agents.md` |
| make environments, and change them from call to call | `streamsampler/docs/environments.md` |
| run code at each timestep; normalise | `streamsampler/docs/hooks-and-filters.md` |
| run many environments in each worker; keep the agent here | `streamsampler/docs/vectorised.md` |
| sample several agents in an environment | `streamsampler/docs/several-agents.md` |
| sample environments that wait | `streamsampler/docs/waiting.md` |
| work in a notebook | `streamsampler/docs/notebook.md` |
| step environments yourself | `streamsampler/docs/stepping.md` |
| evaluate and compare agents | `streamsampler/docs/evaluation.md` |
| evaluate agents on many tasks | `streamsampler/docs/suites.md` |
| refuse a worse agent in a test or a CI job | `streamsampler/docs/gate.md` |
| check an environment and an agent | `streamsampler/docs/checking.md` |
| write and read files | `streamsampler/docs/storage-and-formats.md` |
| use the command line | `streamsampler/docs/cli.md` |
| handle failures | `streamsampler/docs/failures.md` |
| stop and continue a training run; log it | `streamsampler/docs/checkpoints-and-logging.md` |
| sample on several machines | `streamsampler/docs/cluster.md` |
| know the guarantees | `streamsampler/docs/guarantees.md` |
| know the speed | `streamsampler/docs/speed.md` |
| come from another library | `streamsampler/docs/coming-from.md` |
| look up a word | `streamsampler/docs/glossary.md` |
| understand the package | `streamsampler/docs/how-it-works.md` |
| extend it | `streamsampler/docs/extending.md`, `streamsampler/docs/contributing.md` |

`streamsampler.examples` has whole programs.
"""

# `python -m streamsampler` puts the current directory first in `sys.path`, and `__main__` removes it. Until then a file
# in it, such as `typing.py`, could replace a module of the standard library: import none here.
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
    from streamsampler.samplers.folders import sample_to_folder
    from streamsampler.samplers.per_worker import PerWorker
    from streamsampler.samplers.processes import LocalSampler, MultiprocessingSampler
    from streamsampler.samplers.ray import RaySampler
    from streamsampler.stepping.managers import EnvManager, SerialEnvManager
    from streamsampler.stepping.steps import Steps
    from streamsampler.workers.base import Worker
    from streamsampler.workers.default import DefaultWorker
    from streamsampler.workers.factory import WorkerFactory
    from streamsampler.workers.loop import run_worker
    from streamsampler.workers.vec.worker import VecWorker
    from streamsampler.workers.waiting.worker import AsyncWorker

__all__ = [
    "ActionError",
    "Agent",
    "AsyncWorker",
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

# The module of each name, errors apart. Names are imported on first use (PEP 562): a worker process needs less than
# half of the package, and its start consists mostly of imports.
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
    "sample_to_folder": "samplers.folders",
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
    "TrajectoryBatch": "data.multi_agent",  # `TrajectoryBatch.load` then knows batches of several agents
    "run_worker": "workers.loop",
    "Worker": "workers.base",
    "DefaultWorker": "workers.default",
    "VecWorker": "workers.vec.worker",
    "AsyncWorker": "workers.waiting.worker",
    "timed": "core.timing",
}


# Names of garage, and their counterparts here.
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
