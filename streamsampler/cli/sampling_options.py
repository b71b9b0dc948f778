"""The options of all commands that run an environment, as arguments of samplers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from streamsampler.cli.options import option_of
from streamsampler.engines.launch.start_methods import StartMethod
from streamsampler.engines.registry import RAY, EngineName, refuse_lacking
from streamsampler.errors import CheckMode, SamplerError, UsageError
from streamsampler.scheduling.restarts import OnFailure, Quota
from streamsampler.workers.factory import usable_cores
from streamsampler.workers.vec.worker import VecWorker

_IN_ALL = 10
"""The quota of losses in a run, as a multiple of the quota within a minute."""

_OF_ALL_SAMPLERS = ("max_episode_length", "on_failure", "worker_threads", "fingerprint")
_NEED_PROCESSES = ("engine", "start_method", "step_timeout", "max_worker_memory", "ray_address")
"""Options that are called as the samplers' arguments."""


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Which environment is run, and how; the names are those of the options."""

    env_id: str
    env_kwargs: Mapping[str, Any]
    workers: int | None
    seed: int | None
    max_episode_length: int | None
    start_method: StartMethod | None
    on_failure: OnFailure = "raise"
    engine: EngineName | Literal["ray"] | None = None
    ray_address: str | None = None
    step_timeout: float | None = None
    max_restarts: Quota = "auto"
    max_worker_memory: int | None = None
    worker_threads: int | None = 1
    fingerprint: CheckMode = "warn"
    close_timeout: float = 5.0
    vec: int | None = None
    policies: Mapping[str, str] | None = None
    policy_of: Mapping[str, str] | None = None

    def chosen(self, *names: str) -> dict[str, Any]:
        """Return some of the options by name."""
        return {name: getattr(self, name) for name in names}

    @property
    def n_workers(self) -> int:
        """How many workers there are, in processes or in this one."""
        return 1 if self.workers == 0 else self.workers or usable_cores()

    def arguments(self, seed: int) -> dict[str, Any]:
        """Return what `streamsampler.samplers.choosing.make_sampler` takes, besides agent and environment.

        Args:
            seed: The seed.

        Raises:
            UsageError: An option needs worker processes, or Ray, and there are to be none.
        """
        options = {"seed": seed, **self.chosen(*_OF_ALL_SAMPLERS)}
        if self.policy_of is not None:
            options["policy_of"] = self.policy_of
        if self.vec is not None:
            options |= {"worker_class": VecWorker, "worker_args": {"n_envs": self.vec}}
        if self.workers == 0:
            self._check_no_process_options()
            return {**options, "n_workers": 0}
        quota = self.max_restarts
        options["max_lifetime_restarts"] = _IN_ALL * quota if isinstance(quota, int) else quota
        options |= {"n_workers": self.n_workers, **self.chosen(*_NEED_PROCESSES, "max_restarts", "close_timeout")}
        if self.engine == "ray":
            refuse_lacking("ray", RAY, options)
            del options["start_method"]
        elif options.pop("ray_address") is not None:
            raise UsageError("--ray-address needs --engine ray")
        return options

    def _check_no_process_options(self) -> None:
        useless = [option_of(name) for name, value in self.chosen(*_NEED_PROCESSES).items() if value is not None]
        if useless:
            verb = "needs" if len(useless) == 1 else "need"
            raise UsageError(
                f"{' and '.join(useless)} {verb} worker processes, which there are with --workers 1 or more"
            )


@contextlib.contextmanager
def ray_option_named() -> Iterator[None]:
    """Raise what says which option needs Ray, where Ray is missing.

    Raises:
        SamplerError: Ray is missing.
    """
    try:
        yield
    except ImportError as error:
        raise SamplerError(f"--engine ray: {error}") from None
