"""`EnvManager`, with environments in worker processes, and `SerialEnvManager`, with environments in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from gymnasium.vector import AutoresetMode

from streamsampler.agents.policies import PolicyOf
from streamsampler.core.arguments import with_arguments_in_groups
from streamsampler.core.errors import UsageError, positive
from streamsampler.core.keywords import suggesting
from streamsampler.engines.launch.start_methods import StartMethod, check_start_method
from streamsampler.engines.registry import EngineName, check_engine
from streamsampler.environments.ids import JOINT_VIEW
from streamsampler.protocol.limits import DEFAULT_LIMITS, Limits, Quota, limits_of
from streamsampler.protocol.losses import Policy
from streamsampler.stepping.base_manager import BaseEnvManager
from streamsampler.stepping.env_states import Autoreset, OnEnvFailure
from streamsampler.stepping.episode_server import EpisodeServer
from streamsampler.stepping.joint_recorder import JointStepsRecorder
from streamsampler.stepping.options import (
    RESTORE_LIMIT,
    ManagerOptions,
    Verify,
    is_abnormal,
    mode_of,
    n_envs_of,
    updates_of,
    watch_of,
)
from streamsampler.stepping.pools import new_pool_of
from streamsampler.stepping.process_transport import ProcessTransport
from streamsampler.stepping.recorder import RowsRecorder, StepsRecorder
from streamsampler.stepping.serial_transport import PristineEnvs, SerialTransport
from streamsampler.stepping.transport import Transport
from streamsampler.stepping.vector_env import ManagedVectorEnv, ObservationMode
from streamsampler.workers.factory import usable_cores
from streamsampler.workers.threads import check_threads

if TYPE_CHECKING:
    from streamsampler.stepping.sb3_env import ManagedVecEnv


class AnyEnvManager(BaseEnvManager):
    """Adds the interfaces of other libraries, and recorders of batches, to both managers."""

    def vector_env(self, *, observation_mode: ObservationMode = "same") -> ManagedVectorEnv:
        """Return the environments as a `gymnasium.vector.VectorEnv`, in this manager's autoreset mode.

        Closing it closes the manager.

        Args:
            observation_mode: As in Gymnasium's vector environments: "same" if all environments have the same
                observation space, "different" if their bounds may differ; or the batched space and that of a single
                environment.

        Raises:
            UsageError: The manager has `max_episodes`, so its environments stop; or the spaces of the
                environments do not fit together.
        """
        self._refuse_end()
        return ManagedVectorEnv(self, observation_mode)

    def sb3_env(self) -> ManagedVecEnv:
        """Return the environments as a `VecEnv` of Stable-Baselines3; needs `pip install stable-baselines3`.

        Closing it closes the manager. The autoreset mode must be "same_step".

        Raises:
            ImportError: Stable-Baselines3 is not installed.
            UsageError: The manager has `max_episodes`, or another autoreset mode.
        """
        self._refuse_end()
        from streamsampler.stepping.sb3_env import ManagedVecEnv

        return ManagedVecEnv(self)

    def recorder(self, *, max_held: int = 1_000) -> StepsRecorder[Any, Any]:
        """Return a recorder of batches: `add` each returned `Steps`, then `take` whole episodes.

        ```python
        recorder = manager.recorder()
        recorder.add(manager.reset())
        while len(recorder) < 100:
            recorder.add(manager.step(policy(manager.observations())))
        batch = recorder.take(100)
        ```

        It records later episodes from their start. A batch equals that of a sampler with the same seeds and
        actions, for any number of workers, synchronous or not; its agent version is 0. For environments of several
        agents it is a `MultiAgentBatch`.

        Args:
            max_held: How many episodes an environment may be ahead of the slowest one.

        Raises:
            UsageError: The environments have different spaces.
        """
        transport = self._launched()
        spaces = transport.spaces.common("observation"), transport.spaces.common("action")
        if self._several is not None:
            return JointStepsRecorder(self, self._several, self._episodes, max_held)
        return RowsRecorder(self, spaces, self._episodes, max_held)

    def _refuse_end(self) -> None:
        self._launched()
        if self._several is not None:
            raise UsageError(
                "a vector environment needs environments of a single agent, but these have several: step them with "
                f"manager.step({{policy: actions}}). For a vector environment, {JOINT_VIEW}"
            )
        if self._options.max_episodes is not None:
            raise UsageError("a vector environment never stops: make the manager without max_episodes")


@suggesting()
@with_arguments_in_groups()
class SerialEnvManager(AnyEnvManager):
    """Steps environments one after the other in this process, with the calls of `EnvManager`.

    An environment steps when its action is sent. Data equal those of `EnvManager` with the same seed and actions.

    Args:
        envs: An id for `gymnasium.make`, a function to make an environment, an environment, an `EnvSpec` or an
            `EnvUpdate`; or a list with an item for each environment. If their spaces differ in more than their
            bounds, values are not stacked.
        n_envs: The number of environments; optional if `envs` is a list.
        seed: A non-negative integer to derive the seeds of episodes from: episode k of environment e has the seed
            of index e + k * n_envs. None draws a seed, and keeps it in `seed`.
        autoreset: The policy at an episode's end. "next_step": the next action is ignored, and resets the
            environment. "same_step": the same step resets it; `Steps.last_observations` has the last observation,
            `infos["final_info"]` the last info. "disabled": the caller resets it. Gymnasium's `AutoresetMode` works
            as well.
        max_episodes: How many episodes each environment runs after a reset by the caller; None for any number.
        min_envs: How many results `recv` waits for.
        recv_timeout: Most seconds `recv` waits; None for no limit.
        on_failure: The policy when an environment raises: "restore", "reset" or "raise"; see `EnvManager`.
        max_restarts: How often environments may raise within 60 seconds (`limits.restart_window`) before the call
            raises with "restore" and "reset", too; see `MultiprocessingSampler`. Failed resets are retried as
            often. With None, three equal failures of an environment raise.
        limits: Limits of time and restarts, with defaults for most programs; see `Limits`.
        renew: Whether an environment is made again before a retry. Otherwise the same object is reset, which suits
            environments slow to make; with on_failure="reset" only a failed reset makes it again.
        own_generators: Whether each environment has its own states of the global generators (`random`,
            `numpy.random`, torch's), so that data are the same for any number of workers even if environments draw
            from them. Otherwise an environment gets its own states once it is found to draw, with a warning.
        restart_wait: Seconds until a failed environment is retried; the others continue meanwhile.
        restore_limit: The most timesteps recorded of an episode; a failure in a longer one is treated as with
            "reset".
        verify: The observations compared by "restore": the "last", or by their digests those of all "steps", which
            costs time in each step, and finds the first different timestep.
        abnormal: A function of an info: whether its environment failed without raising.
        copy: Whether observations are copied. Otherwise they are read-only views if their environments are
            consecutive, as all are, or a single one. A view holds until its environment receives its next action or
            a reset.
        env_kwargs: Arguments for making the environments.
        policy_of: For environments of several agents (PettingZoo's), the policy of each agent, as in samplers: a
            dict of policy names by agent id, or a function `(agent_id, trajectory_index) -> policy name`. None for
            the agent id up to its last `_`, or the whole id. `Steps` and `send` are by policy then: see
            `streamsampler/docs/stepping.md`.

    Raises:
        UsageError: An argument cannot work.
    """

    def __init__(
        self, envs: Any, *, n_envs: int | None = None, env_kwargs: Mapping[str, Any] | None = None,
        policy_of: PolicyOf | None = None, max_episodes: int | None = None,
        autoreset: Autoreset | AutoresetMode = "next_step", min_envs: int = 1, recv_timeout: float | None = None,
        seed: int | None = None, own_generators: bool = False,
        abnormal: Callable[[Mapping[str, Any]], bool] = is_abnormal, copy: bool = True,
        on_failure: OnEnvFailure = "restore", max_restarts: Quota = Policy.max_restarts, restart_wait: float = 0.0,
        renew: bool = True, restore_limit: int = RESTORE_LIMIT, verify: Verify = "last",
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:  # fmt: skip
        n_envs = n_envs_of(envs, n_envs)
        options = ManagerOptions(
            n_envs, autoreset=mode_of(autoreset), max_episodes=max_episodes, min_envs=min_envs,
            recv_timeout=recv_timeout, on_failure=on_failure, abnormal=abnormal,
            verify=verify, restore_limit=restore_limit, copy=copy, restart_wait=restart_wait,
            own_generators=own_generators, renew=renew, policy_of=policy_of,
        )  # fmt: skip
        no_processes = dict.fromkeys(
            ("construction_timeout", "close_timeout", "max_worker_memory"), "it has no worker processes"
        )
        kept = limits_of(limits, type(self).__name__, no_processes)
        self._policy = options.policy(max_restarts=max_restarts, **kept)
        self._fresh: PristineEnvs | None = None
        super().__init__(updates_of(envs, n_envs, env_kwargs), options, seed)

    def _new_transport(self) -> Transport:
        updates = self._updates
        if self._fresh is None:
            self._fresh = PristineEnvs(updates)
        else:  # environments passed by the caller are closed by now
            updates = {env_id: self._fresh(env_id) for env_id in updates}
        return SerialTransport(
            updates, self._fresh, self._options.autoreset, self._policy, own_generators=self._options.own_generators
        )


@suggesting()
@with_arguments_in_groups(SerialEnvManager)
class EnvManager(AnyEnvManager):
    """Steps environments in worker processes, several in each, with actions from the caller's process.

    For example::

        with EnvManager("CartPole-v1", n_envs=8, seed=1) as manager:
            manager.async_reset()
            for _ in range(1000):
                steps = manager.recv(min_envs=4)  # the first to be ready
                manager.send(manager.random_actions(steps.env_ids), steps.env_ids)

    Each episode is a function of its seed and its actions, for any number of workers and any timing.

    Args:
        envs: See `SerialEnvManager`, as for all other arguments not listed here.
        n_workers: The number of processes; None for the cores this process may use.
        engine: The connection to the workers; see `MultiprocessingSampler`. Data are the same.
        start_method: The way to start processes; see `MultiprocessingSampler`.
        step_timeout: Seconds without progress, such as the start of another step, after which a worker is killed while
            its caller waits; the error has its Python stacks. None for no limit.
        reset_timeout: The same for resets; None for `step_timeout`.
        on_failure: The policy when environments raise, or their worker dies or hangs. "restore": they are made again,
            in a new process if need be, reset with their episodes' seeds, and stepped with the recorded actions. If
            rewards and last observation are equal to the bit, the open step is retried once (after a death, nine
            times), and only `failures` shows it; otherwise as with "reset", with a warning. A further failure is
            raised. "reset": their episodes end, marked in `Steps.failed`, and new ones start. "raise": the error is
            raised, and the environments need a reset.
        max_restarts: How often workers may die or hang and environments raise within 60 seconds
            (`limits.restart_window`) before the call raises; see `SerialEnvManager`.
        restart_wait: Seconds until a lost worker is started again, or a failed environment is retried; the others
            continue meanwhile.
        worker_threads: How many threads libraries compute on in each worker; None for no limit.

    Raises:
        UsageError: An argument cannot work.
        SamplerError: This system lacks a requirement of the engine.
    """

    def __init__(
        self, envs: Any, *, n_envs: int | None = None, env_kwargs: Mapping[str, Any] | None = None,
        policy_of: PolicyOf | None = None, max_episodes: int | None = None,
        autoreset: Autoreset | AutoresetMode = "next_step", n_workers: int | None = None,
        worker_threads: int | None = 1, engine: EngineName | None = None, start_method: StartMethod | None = None,
        min_envs: int = 1, recv_timeout: float | None = None, seed: int | None = None, own_generators: bool = False,
        abnormal: Callable[[Mapping[str, Any]], bool] = is_abnormal, copy: bool = True,
        on_failure: OnEnvFailure = "restore", step_timeout: float | None = None, reset_timeout: float | None = None,
        max_restarts: Quota = Policy.max_restarts, restart_wait: float = 0.0, renew: bool = True,
        restore_limit: int = RESTORE_LIMIT, verify: Verify = "last", limits: Limits = DEFAULT_LIMITS,
    ) -> None:  # fmt: skip
        n_envs = n_envs_of(envs, n_envs)
        options = ManagerOptions(
            n_envs, autoreset=mode_of(autoreset), max_episodes=max_episodes, min_envs=min_envs,
            recv_timeout=recv_timeout, on_failure=on_failure, abnormal=abnormal,
            verify=verify, restore_limit=restore_limit, copy=copy, restart_wait=restart_wait,
            own_generators=own_generators, renew=renew, policy_of=policy_of,
        )  # fmt: skip
        if n_workers == 0 and n_workers is not False:
            raise UsageError(
                "n_workers is 0: to step environments in your own process, use SerialEnvManager, with the same calls "
                "and results"
            )
        self.n_workers = min(n_envs, usable_cores()) if n_workers is None else positive("n_workers", n_workers)
        if self.n_workers > n_envs:
            raise UsageError(f"n_workers is {n_workers}, but there are only {n_envs} environments")
        self._threads = check_threads(worker_threads)
        lacks = {"max_worker_memory": "its workers hold episodes, which a planned restart would interrupt"}
        kept = limits_of(limits, type(self).__name__, lacks)
        method = check_start_method(start_method)
        self._new_pool = new_pool_of(check_engine(engine, method, {}), method)
        self._policy = options.policy(max_restarts=max_restarts, **kept)
        self._timeouts = step_timeout, reset_timeout, limits.construction_timeout
        watch_of(*self._timeouts)  # raises here if a timeout is invalid
        super().__init__(updates_of(envs, n_envs, env_kwargs), options, seed, self.n_workers)

    def _new_transport(self) -> Transport:
        new_server = partial(
            EpisodeServer, autoreset=self._options.autoreset, own_generators=self._options.own_generators
        )
        return ProcessTransport(
            self._updates, self.n_workers, new_server, self._policy, watch=watch_of(*self._timeouts),
            threads=self._threads, restart_wait=self._options.restart_wait, new_pool=self._new_pool,
        )  # fmt: skip

    def worker_pids(self) -> list[int | None]:
        """Return the workers' process ids, by worker number; None for a worker to be started again.

        Any thread may call this at any time.
        """
        return cast("ProcessTransport", self._ensure_launched()).pids()
