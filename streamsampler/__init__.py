"""Collect trajectories from Gymnasium environments in parallel, reproducibly.

```python
from streamsampler import MultiprocessingSampler

with MultiprocessingSampler("random", "CartPole-v1", seed=1) as sampler:
    batch = sampler.obtain_samples(10_000)
    print(batch, batch.observations.shape)
```

Names that users need are imported from here. The guides are docstrings, for `help()` and `python -m pydoc`:

- `streamsampler.samplers`: calls, seeds, evaluation; exceptions, workers that die or hang, log records
- `streamsampler.stepping`: environments that are stepped from your own process, synchronously or not
- `streamsampler.evaluation`: how good an agent is, and whether that is sure
- `streamsampler.checking`: whether an environment and an agent keep to the rules, and how they are run fastest
- `streamsampler.samplers.ray`: workers in a Ray cluster
- `streamsampler.data`: batches; `streamsampler.storage`: files, and folders for more than fits into memory
- `streamsampler.formats`: Minari, Parquet, pandas, TensorDict and others
- `streamsampler.agents`, `streamsampler.environments`: what samplers take
- `streamsampler.adapters`: policies of PyTorch and Stable-Baselines3
- `streamsampler.workers`, `streamsampler.workers.vec`: kinds of workers, several environments in each
- `streamsampler.engines`: where workers live; `streamsampler.protocol.states`: how they talk to the sampler
- `streamsampler.errors`: what is raised; `streamsampler.testing`: failures on purpose, for tests of your code
- `streamsampler.cli`: the command line; `streamsampler.examples`: short programs

For workers and engines of your own more is public, the names in `__all__` of these modules. The guide to workers is
`streamsampler.workers.base`, the guide to engines `streamsampler.engines.base`; they use `streamsampler.workers.loop`,
`streamsampler.workers.board`, `streamsampler.workers.factory`, `streamsampler.workers.generators`,
`streamsampler.protocol.messages`, `streamsampler.scheduling.blocks`, `streamsampler.data.recorder`,
`streamsampler.agents.base`, `streamsampler.agents.draws`, `streamsampler.agents.independence`,
`streamsampler.agents.updates`, `streamsampler.environments.updates`,
`streamsampler.seeding` and `streamsampler.serialization`.
"""

# `python -m streamsampler` puts the current directory first in `sys.path`, and `__main__` removes it. Until then this
# file imports nothing that a file in that directory, such as `typing.py`, could replace.
from importlib import import_module

from streamsampler.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from streamsampler import errors as errors
    from streamsampler.agents.base import Agent
    from streamsampler.agents.random import RandomAgent
    from streamsampler.checking.check import check
    from streamsampler.data.batch import StepType, TrajectoryBatch
    from streamsampler.environments.parameters import SetParameters
    from streamsampler.environments.updates import EnvUpdate, ExistingEnvUpdate, NewEnvUpdate, SetTaskUpdate
    from streamsampler.errors import (
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
        UnknownEnvironmentError,
        UnwritableInfoError,
        UsageError,
        WorkerDiedError,
        WorkerError,
        WorkerHungError,
    )
    from streamsampler.evaluation.compare import compare
    from streamsampler.evaluation.evaluate import evaluate
    from streamsampler.evaluation.merging import merge
    from streamsampler.evaluation.replay import replay
    from streamsampler.samplers.base import Sampler
    from streamsampler.samplers.local import LocalSampler
    from streamsampler.samplers.per_worker import PerWorker
    from streamsampler.samplers.processes import MultiprocessingSampler
    from streamsampler.samplers.ray import RaySampler
    from streamsampler.samplers.sharded import sample_to_folder
    from streamsampler.stepping.env_manager import EnvManager
    from streamsampler.stepping.serial import SerialEnvManager
    from streamsampler.stepping.steps import Steps
    from streamsampler.storage.folder import TrajectoryFolder, load
    from streamsampler.timing import timed
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
    "LocalSampler",
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
    "TrajectoryFolder": "storage.folder",
    "load": "storage.folder",
    "PerWorker": "samplers.per_worker",
    "LocalSampler": "samplers.local",
    "MultiprocessingSampler": "samplers.processes",
    "RaySampler": "samplers.ray",
    "Sampler": "samplers.base",
    "sample_to_folder": "samplers.sharded",
    "check": "checking.check",
    "compare": "evaluation.compare",
    "evaluate": "evaluation.evaluate",
    "merge": "evaluation.merging",
    "replay": "evaluation.replay",
    "EnvManager": "stepping.env_manager",
    "SerialEnvManager": "stepping.serial",
    "Steps": "stepping.steps",
    "StepType": "data.batch",
    "TrajectoryBatch": "data.batch",
    "run_worker": "workers.loop",
    "Worker": "workers.base",
    "DefaultWorker": "workers.default",
    "VecWorker": "workers.vec.worker",
    "timed": "timing",
}


def __getattr__(name: str) -> "Any":
    if name == "errors":  # for `except streamsampler.errors.…`
        return import_module(f"{__name__}.errors")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOMES.get(name, "errors")
    value = globals()[name] = getattr(import_module(f"{__name__}.{home}"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
