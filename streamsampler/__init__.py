"""Collect trajectories from Gymnasium environments in parallel, reproducibly.

Everything a user needs is importable from here; see the README for how it fits together.
"""

from streamsampler.agents import Agent, RandomAgent
from streamsampler.environments import EnvUpdate, ExistingEnvUpdate, NewEnvUpdate, SetTaskUpdate
from streamsampler.factory import WorkerFactory
from streamsampler.folders import TrajectoryFolder, load
from streamsampler.samplers import LocalSampler, MultiprocessingSampler
from streamsampler.trajectories import StepType, TrajectoryBatch
from streamsampler.version import __version__
from streamsampler.worker_loop import run_worker
from streamsampler.workers.base import Worker
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.vec import VecWorker

__all__ = [
    "Agent",
    "DefaultWorker",
    "EnvUpdate",
    "ExistingEnvUpdate",
    "LocalSampler",
    "MultiprocessingSampler",
    "NewEnvUpdate",
    "RandomAgent",
    "SetTaskUpdate",
    "StepType",
    "TrajectoryBatch",
    "TrajectoryFolder",
    "VecWorker",
    "Worker",
    "WorkerFactory",
    "__version__",
    "load",
    "run_worker",
]
