"""Step environments in worker processes from the caller's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast

from gymnasium.vector import AutoresetMode

from streamsampler.engines.launch.start_methods import default_start_method, has_processes
from streamsampler.errors import SamplerError, UsageError, positive
from streamsampler.scheduling.restarts import Policy, Quota
from streamsampler.stepping.manager import BaseEnvManager
from streamsampler.stepping.options import (
    RESTORE_LIMIT,
    ManagerOptions,
    OnEnvFailure,
    Verify,
    is_abnormal,
    mode_of,
    n_envs_of,
    updates_of,
    watch_of,
)
from streamsampler.stepping.stepper import Autoreset, Stepper
from streamsampler.stepping.transport import Transport
from streamsampler.workers.factory import usable_cores
from streamsampler.workers.threads import check_threads

if TYPE_CHECKING:
    from streamsampler.stepping.processes import ProcessTransport

__all__ = ["EnvManager"]


class EnvManager(BaseEnvManager):
    """Steps environments in worker processes, several in each, with actions from the caller's process.

    For example::

        with EnvManager("CartPole-v1", n_envs=8, seed=1) as manager:
            manager.async_reset()
            for _ in range(1000):
                steps = manager.recv(min_envs=4)  # whichever are ready first
                manager.send(manager.random_actions(steps.env_ids), steps.env_ids)

    Each episode is a function of its seed and its actions, whatever the number of workers and the timing.

    Args:
        envs: See `SerialEnvManager`, as all other arguments that are not named here.
        n_workers: How many processes there are; None for the cores that this process may use.
        step_timeout: Seconds, while its caller waits, in which a worker may show no progress, such as the beginning of
            another step; then it is killed, with its Python stacks in the error. None for no limit.
        reset_timeout: The same for resets; None for `step_timeout`.
        construction_timeout: Seconds that a worker may take from its start until its environments are made; None for
            60, or for the longer of the others, where there is one.
        on_failure: What becomes of environments that raise, or whose worker dies or hangs. "restore": they are made
            anew, in a new process if need be, reset with the seeds of their episodes, and the actions so far are
            applied again. If the rewards and the last observation are what they were, to the bit, the open step is
            tried once more (after a death, nine times), and only `failures` tells; otherwise it is as with "reset",
            with a warning. An environment that fails again at that is an error, as with "raise". "reset": their
            episodes end, marked in `Steps.failed`, and new ones begin. "raise": the error is raised, and the
            environments are to be reset.
        max_restarts: How often workers may die or hang and environments raise within `restart_window` seconds before
            that is an error with "restore" and "reset", too; see `MultiprocessingSampler`.
        restart_window: Seconds; None for the manager's whole life.
        restart_wait: Seconds until a worker that was lost is started again, and an environment that raised is tried
            again; the others go on meanwhile.
        close_timeout: Seconds that all workers together may take to close their environments.
        start_method: None; processes are started by a fork server.
        worker_threads: How many threads libraries compute on in each worker; None for no limit.

    Raises:
        UsageError: An argument cannot work.
        SamplerError: This system lacks what worker processes are started and ended with.
    """

    def __init__(
        self,
        envs: Any,
        *,
        n_envs: int | None = None,
        n_workers: int | None = None,
        seed: int | None = None,
        autoreset: Autoreset | AutoresetMode = "next_step",
        max_episodes: int | None = None,
        min_envs: int = 1,
        recv_timeout: float | None = None,
        step_timeout: float | None = None,
        reset_timeout: float | None = None,
        construction_timeout: float | None = None,
        on_failure: OnEnvFailure = "restore",
        max_restarts: Quota = Policy.max_restarts,
        restart_window: float | None = Policy.restart_window,
        restart_wait: float = 0.0,
        own_generators: bool = False,
        restore_limit: int = RESTORE_LIMIT,
        verify: Verify = "last",
        close_timeout: float = Policy.close_timeout,
        start_method: Literal["forkserver"] | None = None,
        worker_threads: int | None = 1,
        abnormal: Callable[[Mapping[str, Any]], bool] = is_abnormal,
        copy: bool = True,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        if not has_processes():
            raise SamplerError(
                "EnvManager needs Linux or macOS: this system lacks what its worker processes are started and ended "
                "with. SerialEnvManager has the same calls and returns the same data, from this process alone"
            )
        n_envs = n_envs_of(envs, n_envs)
        options = ManagerOptions(
            n_envs, mode_of(autoreset), max_episodes, min_envs, recv_timeout, on_failure, abnormal,
            verify=verify, restore_limit=restore_limit, copy=copy, restart_wait=restart_wait,
            own_generators=own_generators,
        )  # fmt: skip
        self.n_workers = min(n_envs, usable_cores()) if n_workers is None else positive("n_workers", n_workers)
        if self.n_workers > n_envs:
            raise UsageError(f"n_workers is {n_workers}, but there are only {n_envs} environments")
        if start_method not in (None, "forkserver"):
            raise UsageError(
                f"EnvManager starts workers by a fork server, got start_method={start_method!r}: leave it out, or "
                "use SerialEnvManager, which has the same calls and steps environments in this process"
            )
        self._threads = check_threads(worker_threads)
        self._policy = options.policy(
            max_restarts=max_restarts, restart_window=restart_window, close_timeout=close_timeout
        )
        self._limits = step_timeout, reset_timeout, construction_timeout
        watch_of(*self._limits)  # raises where one of them cannot work
        super().__init__(updates_of(envs, n_envs, env_kwargs), options, seed, self.n_workers)

    def _new_transport(self) -> Transport:
        from streamsampler.stepping.processes import ProcessTransport  # of which another system lacks what it imports

        new_stepper = partial(Stepper, autoreset=self._options.autoreset, own_generators=self._options.own_generators)
        return ProcessTransport(
            self._updates, self.n_workers, new_stepper, self._policy, watch_of(*self._limits),
            default_start_method(), self._threads, self._options.restart_wait,
        )  # fmt: skip

    def worker_pids(self) -> list[int | None]:
        """Return the workers' process ids, by worker number; None for one that is not started again yet.

        Another thread may ask for them, whatever the manager is at.
        """
        return cast("ProcessTransport", self._there()).pids()
