"""`EnvManager`, with environments in worker processes, and `SerialEnvManager`, with environments in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from gymnasium.vector import AutoresetMode

from streamsampler.agents.policies import PolicyOf
from streamsampler.core.arguments import with_arguments_in_groups
from streamsampler.core.errors import SerializationError, UsageError, positive
from streamsampler.core.keywords import suggesting
from streamsampler.core.serialization import Payload, dumps, loads
from streamsampler.core.timing import not_measuring
from streamsampler.engines.launch.start_methods import StartMethod, check_start_method
from streamsampler.engines.registry import EngineName, check_engine
from streamsampler.environments.ids import JOINT_VIEW
from streamsampler.environments.updates import EnvUpdate, NewEnvUpdate, SpecEnvUpdate
from streamsampler.protocol.limits import DEFAULT_LIMITS, Limits, Quota, limits_of
from streamsampler.protocol.restarts import Losses, Policy
from streamsampler.stepping.env_messages import Broken, Done, EnvReport, Restored
from streamsampler.stepping.env_states import Autoreset, OnEnvFailure
from streamsampler.stepping.env_times import WorkerReport
from streamsampler.stepping.episode_server import EpisodeServer
from streamsampler.stepping.failures import EnvErrors
from streamsampler.stepping.joint_recorder import JointStepsRecorder
from streamsampler.stepping.manager import BaseEnvManager
from streamsampler.stepping.options import (
    RESTORE_LIMIT,
    ManagerOptions,
    Updates,
    Verify,
    is_abnormal,
    mode_of,
    n_envs_of,
    updates_of,
    watch_of,
)
from streamsampler.stepping.pools import new_pool_of
from streamsampler.stepping.processes import ProcessTransport
from streamsampler.stepping.recorder import RowsRecorder, StepsRecorder
from streamsampler.stepping.restores import RestoreOrder
from streamsampler.stepping.rows import EnvSpaces, Rows
from streamsampler.stepping.server import Answers
from streamsampler.stepping.transport import Transport, warn_of_unclosed
from streamsampler.stepping.vector_env import ManagedVectorEnv, ObservationMode
from streamsampler.workers.explain import summary_of
from streamsampler.workers.factory import usable_cores
from streamsampler.workers.restoring import own_copy
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


class _Fresh:
    """Makes environments as they were before the first was made: a passed environment is used up by then."""

    def __init__(self, updates: Updates) -> None:
        self._updates = {
            env_id: update if isinstance(update, SpecEnvUpdate | NewEnvUpdate) else self._pickled(update)
            for env_id, update in updates.items()
        }

    @staticmethod
    def _pickled(update: EnvUpdate) -> Payload | SerializationError:
        try:
            return dumps(update, "the environment")
        except SerializationError as error:
            return error

    def __call__(self, env_id: int) -> EnvUpdate:
        update = self._updates[env_id]
        if isinstance(update, SerializationError):
            raise SerializationError(f"environment {env_id} cannot be made again: {update}") from update
        return loads(update) if isinstance(update, Payload) else update


class _InThisProcess(Transport, Answers):
    failures = (Exception, SystemExit)
    are_awaited = False

    def __init__(
        self, updates: Updates, fresh: _Fresh, autoreset: Autoreset, policy: Policy, *, own_generators: bool
    ) -> None:
        self.losses = Losses(policy)
        self._errors = EnvErrors(policy, [list(updates)])
        # The server writes its progress here: nobody reads it.
        row: Any = SimpleNamespace(words=[0, 0, 0], timesteps_word=0, trajectory_word=1, phase_word=2)
        self._server = EpisodeServer(updates, 0, row, autoreset, own_generators=own_generators, is_shared=True)
        self._server.on_draws = self._warn_of_draws
        self._server.fresh = fresh
        self._events: list[EnvReport] = []
        self._infos: dict[int, dict[str, Any]] = {}
        self._at_work: Sequence[int] = ()

    def start(self) -> None:
        outside = not_measuring()
        with outside, outside:
            self.spaces = EnvSpaces(self._server.make())
        self.rows = self._server.rows = Rows(self.spaces, np.zeros)

    def step(self, env_ids: Sequence[int], *, together: bool = False) -> None:  # noqa: ARG002 - always together
        self._work(env_ids, lambda: self._server.step(env_ids, self))

    def reset(self, env_ids: Sequence[int], options: Mapping[int, dict[str, Any] | None]) -> None:
        for env_id in env_ids:
            if env_id in options:
                self._server.set_options(env_id, options[env_id])
        self._work(env_ids, lambda: self._server.reset(env_ids, self))

    def keep(self, env_id: int, phase: str, info: dict[str, Any]) -> None:  # noqa: ARG002 - nothing fails later
        self._infos[env_id] = {key: own_copy(value) for key, value in info.items()}  # it may reuse its arrays

    def give(self, env_ids: list[int]) -> None:
        infos, self._infos = self._infos, {}
        self._events.append(Done(env_ids, infos))

    def fail(self, env_id: int, phase: str, error: BaseException) -> None:
        raised = self._errors.raised(env_id, 0, phase, summary_of(error), error, error)
        self._events.append(Broken.alone(env_id, raised))

    def _work(self, env_ids: Sequence[int], carry_out: Callable[[], Any]) -> Any:
        """Record which environments run: any other end than an `Exception` interrupts them in the middle."""
        server, self._at_work = self._server, env_ids
        server.generators.look_away()
        collecting = server.times.collecting()
        try:
            with collecting, collecting:
                result = carry_out()
        except Exception:
            self._at_work = ()
            raise
        self._at_work = ()
        return result

    def interrupted(self, waiting: Collection[int]) -> Sequence[Broken]:
        answered = {env_id for event in self._events if isinstance(event, Done | Broken) for env_id in event.env_ids}
        lost = sorted({*self._at_work, *waiting} - answered)
        self._server.end_episodes(lost)
        error = InterruptedError("a call was interrupted in the middle")
        return [Broken([env_id], error, 0) for env_id in lost]

    def forget_options(self, env_ids: Sequence[int]) -> dict[int, dict[str, Any] | None]:
        return {env_id: self._server.forget_options(env_id) for env_id in env_ids}

    def restore(self, orders: Sequence[RestoreOrder]) -> None:
        self._server.generators.look_away()
        for order in orders:
            try:
                why_not = self._server.restore(order)
            except (Exception, SystemExit) as error:
                self.fail(order.env_id, "reset", error)
                continue
            n_timesteps = None if order.seed is None else order.n_timesteps
            self._events.append(Restored(order.env_id, n_timesteps, why_not))

    def give_up(self, env_ids: Sequence[int]) -> None:
        self._server.not_restored.difference_update(env_ids)

    def collect(self, timeout: float | None, awaited: Sequence[int] = ()) -> Sequence[EnvReport]:  # noqa: ARG002
        if not self._events and timeout:
            threading.Event().wait(timeout)  # only retries are due
        self.in_hand = True
        events, self._events = self._events, []
        return events

    def take_round(self, n: int) -> Mapping[int, dict[str, Any]] | None:
        if len(self._events) != 1:
            return None
        event = self._events[0]
        if not isinstance(event, Done) or len(event.env_ids) != n:
            return None
        self.in_hand, self._events = True, []
        return event.infos

    def request(self, env_ids: Sequence[int], kind: str, name: str, arguments: Sequence[Any]) -> list[Any]:
        tried: dict[int, bool] = {}
        self.tried = tried

        def carry_out() -> list[Any]:
            values = []
            for env_id, argument in zip(env_ids, arguments, strict=True):
                tried[env_id] = True
                try:
                    values.append(self._server.request(env_id, kind, name, argument))
                except SystemExit as error:  # it would end the caller's program
                    raise self._errors.raised(env_id, 0, name, summary_of(error), error, error) from error
                tried[env_id] = False
            return values

        answers: list[Any] = self._work(env_ids, carry_out)
        return answers

    def reports(self) -> Sequence[WorkerReport]:
        return [self._server.times.take()]

    def close(self) -> None:
        warn_of_unclosed({env_id: summary_of(error) for env_id, error in self._server.close_all().items()})


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
        on_failure: The policy when an environment raises. "restore": it is made again, reset with its episode's
            seed, and stepped with the recorded actions. If rewards and last observation are equal to the bit, the
            step is retried once, and only `failures` shows it; otherwise as with "reset", with a warning. A second
            exception is raised. "reset": its episode ends, marked in `Steps.failed`. "raise": the exception is
            raised, and the environment needs a reset.
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
        self._fresh: _Fresh | None = None
        super().__init__(updates_of(envs, n_envs, env_kwargs), options, seed)

    def _new_transport(self) -> Transport:
        updates = self._updates
        if self._fresh is None:
            self._fresh = _Fresh(updates)
        else:  # environments passed by the caller are closed by now
            updates = {env_id: self._fresh(env_id) for env_id in updates}
        return _InThisProcess(
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
        on_failure: The policy when environments raise, or their worker dies or hangs; see `SerialEnvManager`. With
            "restore", the environments of a lost worker are made again in a new process, and after a death their open
            step is retried nine times. With "reset", their episodes end, marked in `Steps.failed`, and new ones start.
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
        return cast("ProcessTransport", self._there()).pids()
