"""The base class of all samplers: checks the constructor's arguments, and adds the call for fragments."""

from __future__ import annotations

import functools
import inspect
import numbers
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, Unpack

from streamsampler.agents.filters import Filter, Filters
from streamsampler.agents.policies import PolicyOf
from streamsampler.core.arguments import with_arguments_in_groups
from streamsampler.core.errors import CheckMode, UsageError, check_mode, positive
from streamsampler.core.keywords import suggesting
from streamsampler.core.progress import ProgressArgument
from streamsampler.core.serialization import dumps
from streamsampler.data.batch import TrajectoryBatch, brackets
from streamsampler.data.batch_fields import ActionsT, ObservationsT
from streamsampler.data.taken_actions import check_record_taken
from streamsampler.protocol.limits import DEFAULT_LIMITS, Limits, Quota, limits_of
from streamsampler.protocol.losses import OnFailure, Policy
from streamsampler.protocol.plans import Fragments
from streamsampler.protocol.result import Order
from streamsampler.samplers.life import SamplerLife, SamplerSetup
from streamsampler.samplers.obtaining import ObtainingSampler
from streamsampler.samplers.off_by_one import OffByOneSchedule, check_staleness
from streamsampler.samplers.options import SamplerOptions
from streamsampler.samplers.per_worker import Agents, Envs, items_by_worker
from streamsampler.samplers.tasks import UpdatesChecker, refuse_calls
from streamsampler.workers.base import Worker
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.factory import WorkerFactory, WorkerSetup
from streamsampler.workers.hooks import pickled_hooks, raises_all
from streamsampler.workers.resets import Options, common_resets
from streamsampler.workers.seams import WorkerWithSeams
from streamsampler.workers.threads import check_threads

_N_ENVS = 8

P = ParamSpec("P")


def with_factory(init: Callable[P, None]) -> Callable[P, None]:
    """Let a sampler be made as in garage: `MultiprocessingSampler(worker_factory, agents, envs)`.

    Type checkers do not see this form; for them, use `from_worker_factory`.
    """

    @functools.wraps(init)
    def taking(self: Any, *args: Any, **options: Any) -> None:
        factory = options.pop("worker_factory", None)
        if args and isinstance(args[0], WorkerFactory):
            factory, *args = args  # type: ignore[assignment]
        if factory is not None:
            self._take_factory(factory, options)
        init(self, *args, **options)

    return taking  # type: ignore[return-value]


@suggesting()
@with_arguments_in_groups()
class Sampler(ObtainingSampler[ObservationsT, ActionsT], Generic[ObservationsT, ActionsT]):
    """Collect trajectories; subclasses decide where the workers run.

    The arguments common to all samplers are documented here.

    Args:
        agents: An agent (see `Agent`), a callable `observation -> action`, "random", or a list or `PerWorker` with an
            agent for each worker. For environments of several agents, a dict of agents by policy name.
        envs: An id for `gymnasium.make`, a callable returning an environment, an environment, an `EnvSpec`, an
            `EnvUpdate`, or a list or `PerWorker` with an environment for each worker. With a list, trajectory index i
            belongs to worker `i % n_workers`, so results depend on the number of workers. A parameter `worker_number`
            of the callable or entry point receives 0 to n_workers-1, for ports, file names and devices; trajectories
            must not depend on it. For a different environment in each row of a `VecWorker`, see
            `streamsampler.environments.PerEnv`.
        env_kwargs: Keyword arguments for each environment made from an id, an `EnvSpec` (added to its own) or a
            callable; not for an `env_update`.
        n_workers: Number of workers. None for the length of a list in `agents` or `envs`, else for this process's cores
            (`LocalSampler`: 1).
        seed: A non-negative integer from which all randomness is derived; None draws fresh entropy.
        max_episode_length: Timesteps after which a trajectory is truncated; None or `math.inf` for the environment's
            own limit. A trajectory with more than ten times the timesteps requested from `obtain_samples` is reported
            once in the log (not by `LocalSampler`, which cannot check while it steps).
        worker_class: The kind of worker: a subclass of `Worker`.
        worker_args: Further keyword arguments for the workers.
        order: "index" returns trajectories 0, 1, 2, …, as a single process would. "arrival" returns those finished
            first (in `obtain_exact_trajectories`, each worker's first), and so over-represents short trajectories.
        on_failure: "raise" ends the call when user code raises in a trajectory needed for the batch. "drop" leaves the
            trajectory out, records its error in the statistics, and completes the batch with the next indices. If
            failures depend on the state, the data are biased.
        max_restarts: Number of dead or hung workers replaced within any 60 seconds (`limits.restart_window`). Lost
            trajectories are run again, so the batch does not change. The next loss ends the call with an error listing
            all of them. "auto" for 10 with up to eight workers, in proportion with more. None for no limit, but the
            same exception three times in one trajectory is an error. Losses in surplus trajectories do not count. Each
            task of a suite has its own quota; so have deaths of workers without a ticket.
        restart_on: Exception type, or tuple of types, that counts as a loss when user code raises it.
        trajectory_timeout: Seconds allowed for a trajectory in waiting environments (`AsyncWorker`). A longer
            trajectory is cancelled and run again; the third time is an error, or drops it with `on_failure="drop"`. See
            `streamsampler/docs/waiting.md`.
        limits: Limits of time, memory and restarts; see `Limits`.
        check: "warn" logs a warning, once, if trajectories depend on more than their seeds, so that batches would
            differ with the number of workers, or if data may be wrong; "error" ends the call instead; None checks
            nothing. In the first call, and after an `env_update` to another class or id (not a `SetTaskUpdate`), worker
            0 runs trajectory 0, a different trajectory, and trajectory 0 again in the same environment, and compares up
            to 200 timesteps with their infos. Infos that also differ between two new environments, such as clock times,
            only cause a warning. "warn" starts no reset or timestep of the check after 0.2 seconds; "error" runs all of
            it, before other workers start. Wrappers known to carry state between trajectories, such as
            `NormalizeObservation`, are recognised without a run. Exceptions during the check are ignored. Its timesteps
            are in `stats.checked_timesteps`.
        fingerprint: Reaction to workers with different arithmetic: NumPy and torch choose kernels by the processor, and
            different kernels give different last bits, hence different trajectories. Each worker sends the digest of a
            small probe with its first report. "warn" logs a warning with the workers and machines that differ; "error"
            ends the call; None ignores them. `batch.fingerprints` has the digests.
        worker_threads: Threads for numerical libraries in each worker; the last bits of a network's outputs may depend
            on it. Sets unset environment variables such as OMP_NUM_THREADS, for libraries loaded later; the number of a
            loaded torch; and, with threadpoolctl, of a loaded OpenBLAS or MKL. Your own variables take precedence,
            except for torch. Without threadpoolctl, an already loaded NumPy (in `LocalSampler`, and in workers forked
            from your program) keeps its number. `LocalSampler` restores the previous numbers after each call or step of
            a stream. A library loaded during a trajectory is limited from the next ticket on. None changes nothing.
        observation_filter: A filter of the agent's observations, such as `RunningNorm`, with statistics that belong to
            the agent version; see `streamsampler/docs/hooks-and-filters.md`. With several policies, a dict by policy
            name.
        reward_filter: The same for rewards, such as `RunningReturnNorm`.
        hooks: An object with any of `on_environment_created(env, worker_number)`, `on_trajectory_start(context)`,
            `on_timestep(context)`, `on_trajectory_end(context)` and `on_trajectory_lost(context, error)`, called in the
            workers; see `streamsampler/docs/hooks-and-filters.md`. Values written to the context's `metrics` are
            returned in `batch.episode_infos`, and summarised in `batch.stats.metrics`. Not for vector environments.
        drop_if: A function called with the info of each reset and timestep. If it returns true, the trajectory is
            abnormal: it ends, and is dropped and counted as with `on_failure="drop"`, with the same bias. Not for
            fragments.
        record_taken: The name of an info with the action really taken, such as "action_taken", to record in place of
            the agent's; see `streamsampler.data.taken_actions`.
        staleness: 0 samples each batch with its call's parameters; 1 with those of the call before, so that workers
            sample while you learn; see `streamsampler/docs/sampling.md`.
        policy_of: Which policy of `agents={"name": agent}` acts for which of an environment's agents: a function
            `(agent_id, trajectory_index) -> name`, called once for each agent and trajectory, or a dict by agent id.
            None for the policy named like the agent id, with or without its suffix after the last `_`, or the only
            policy. See `streamsampler/docs/several-agents.md`.

    Attributes:
        seed: The seed, drawn or given. `type(sampler)(…, seed=sampler.seed)` repeats everything.
        n_workers: Number of workers.
        policy_names: Names of several policies; empty with a single agent.
        stats: Statistics of all calls together.

    Raises:
        UsageError: An argument is invalid (a ValueError).
        SerializationError: An agent or an environment cannot be pickled.
    """

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(brackets)

    _default_workers: int | None = None
    _holds_agent = False
    """Whether the agent stays in this process, unpickled; subclasses set it before they call `__init__`."""
    _given_factory: WorkerFactory | None = None
    _step_timeout: float | None = None  # subclasses with workers that can be killed set it before calling `__init__`
    _lacks_limits: Mapping[str, str] = {}
    """Limits unavailable in this kind of sampler, with the reasons."""

    @with_factory
    @suggesting()
    def __init__(
        self,
        agents: Agents,
        envs: Envs,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        policy_of: PolicyOf | None = None,
        max_episode_length: float | None = None,
        worker_class: type[Worker] = DefaultWorker,
        worker_args: Mapping[str, Any] | None = None,
        observation_filter: Filter | Mapping[str, Filter] | None = None,
        reward_filter: Filter | Mapping[str, Filter] | None = None,
        hooks: Any = None,
        n_workers: int | None = None,
        worker_threads: int | None = 1,
        seed: int | None = None,
        order: Order = "index",
        staleness: int = 0,
        check: CheckMode = "warn",
        fingerprint: CheckMode = "warn",
        drop_if: Callable[[dict[str, Any]], Any] | None = None,
        record_taken: str | None = None,
        on_failure: OnFailure = Policy.on_failure,
        max_restarts: Quota = Policy.max_restarts,
        restart_on: type[BaseException] | tuple[type[BaseException], ...] = Policy.restart_on,
        trajectory_timeout: float | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        filters = Filters(observation_filter, reward_filter)
        policy = Policy(
            on_failure=on_failure,
            max_restarts=max_restarts,
            restart_on=(restart_on,) if isinstance(restart_on, type) else restart_on,
            step_timeout=self._step_timeout,
            **limits_of(limits, type(self).__name__, self._lacks_limits),
        )
        if n_workers is None:
            lengths = [len(items) for given in (agents, envs) if (items := items_by_worker(given)) is not None]
            n_workers = lengths[0] if lengths else self._default_workers
        factory = self._given_factory or WorkerFactory(
            n_workers=n_workers,
            seed=seed,
            max_episode_length=max_episode_length,
            worker_class=worker_class,
            worker_args=worker_args,
        )
        holds_agent = self._holds_agent
        given = UpdatesChecker(factory, worker_class, filters, policy_of, env_kwargs, holds_agent).given(agents, envs)
        drop_unless = policy.restarts_on if policy.drops else None
        if drop_if is not None:
            # "drop" because the batch has gaps; drop_unless=raises_all still lets exceptions end the call.
            policy = replace(policy, on_failure="drop")
            drop_unless = drop_unless or raises_all
        workers = WorkerSetup(
            given.factory,
            check_threads(worker_threads),
            check_mode(check),
            drop_unless,
            fingerprint=check_mode(fingerprint, "fingerprint"),
            hooks=pickled_hooks(hooks, drop_if),
            record_taken=check_record_taken(record_taken),
            step_timeout=self._step_timeout,
            trajectory_timeout=trajectory_timeout,
        )
        if order not in ("index", "arrival"):
            raise UsageError(f'order must be "index" or "arrival", got {order!r}')
        dumps(filters, "the filters")
        off_by_one = OffByOneSchedule() if check_staleness(staleness, order, filters) else None
        if off_by_one is not None:
            refuse_calls(given.tasks, "staleness=1")
        env_facts = () if given.tasks else given.updates.about("env")
        self._setup = SamplerSetup(workers, order, policy, given.policy_names, holds_agent, env_facts, given.tasks)
        self._life = SamplerLife(self._setup, self.make_engine, given.updates, filters, off_by_one)

    @classmethod
    def from_worker_factory(
        cls, worker_factory: WorkerFactory, agents: Agents, envs: Envs, **options: Unpack[SamplerOptions]
    ) -> Self:
        """Make a sampler with workers from `worker_factory`.

        garage's `MultiprocessingSampler(worker_factory, agents, envs)` in a form known to type checkers.

        Args:
            worker_factory: Number and kind of the workers, with their seed and arguments.
            agents: See `Sampler`.
            envs: See `Sampler`.
            options: The sampler's other arguments, by keyword.

        Raises:
            TypeError: An option is not an argument of the sampler, or belongs to the worker factory.
        """
        sampler = cls.__new__(cls)
        sampler._take_factory(worker_factory, options)
        sampler.__init__(agents, envs, **options)  # type: ignore[misc]
        return sampler

    def _take_factory(self, worker_factory: WorkerFactory, options: Mapping[str, Any]) -> None:
        name = type(self).__name__
        if not isinstance(worker_factory, WorkerFactory):
            raise UsageError(f"worker_factory of {name} must be a WorkerFactory, got {worker_factory!r:.60}")
        if twice := sorted(inspect.signature(WorkerFactory).parameters & options.keys()):
            raise TypeError(f"{name} takes {', '.join(twice)} from its worker_factory: pass it to WorkerFactory")
        self._given_factory = worker_factory

    def obtain_fragments(
        self,
        n_timesteps: int,
        n_envs: int | None = None,
        agent_update: Any = None,
        env_update: Envs | None = None,
        progress: ProgressArgument = False,
        *,
        reset_options: Options | None = None,
        restore_limit: int = Fragments.restore_limit,
    ) -> TrajectoryBatch[ObservationsT, ActionsT]:
        """Return exactly `n_timesteps` timesteps from each of `n_envs` environments, continuing their episodes.

        Environments are reset only at the end of an episode, or by an `env_update`. The batch's trajectories are parts
        of episodes, ordered by environment, then time. `batch.continued` marks parts started in an earlier call,
        `batch.cut` parts that continue in the next call (neither terminated nor truncated; bootstrap from
        `last_observations`), and `batch.as_grid("rewards")` has shape (n_timesteps, n_envs). `batch.returns` are of
        parts; `batch.episode_returns` and `batch.episode_lengths` are of episodes that ended in this call.

        The environment receives actions as recorded, with floats cast to the action space's dtype. (In whole
        trajectories it receives the agent's own value.)

        Episode k of environment e has index `e + k * n_envs` and the seed of this trajectory under the agent version in
        which the environments started; errors give both numbers. So episodes depend on the sampler's seed, on e, and on
        each call's arguments, not on the number of workers. Episodes of a lost worker are restored by applying their
        actions again. This needs an agent without `reset` (and without ``starts``, see `Agent`), or with `get_state()`
        and `set_state(state)`, and an environment determined by its seed and actions: agent and environment, or several
        environments of a `VecWorker`, must not draw from the same global generator. Otherwise, or if restoring raises,
        the episode counts as failed and a new episode starts, with a warning.

        A callable must return a new environment each time, because several run at once.

        Whole trajectories in between, evaluations included, run in further environments (`stats.further_envs`), and do
        not disturb the episodes. The single agent of `inference="parent"` has its memory restored afterwards, by
        `get_state()` and `set_state(state)`. If the callable returns the same environment each time, or in a pickled
        copy of the sampler, or after `load_state_dict`, episodes are restored as after a loss. An `env_update` in any
        call (with a warning), another `n_envs` and an exception in a call for fragments end the
        episodes: the next call starts with fresh environments. Fragments do not work with `on_failure="drop"`: a
        dropped episode would leave a hole in the grid.

        Args:
            n_timesteps: Timesteps for each environment, at least 1.
            n_envs: Number of environments of all workers together, at least 1; environment e belongs to worker
                `e % n_workers`. None for the number in the last call for fragments; in the first call 8, or the
                `n_envs` of `VecWorker` if larger, whatever the number of workers. A different number than in the last
                call starts fresh environments, with a warning. With `VecWorker`, groups of its `n_envs` environments
                belong to the workers in turn, whatever their number. With `inference="parent"`, `VecWorker`'s `n_envs`
                is the maximum and the default.
            agent_update: See `obtain_samples`. An agent replaced during an episode is reset.
            env_update: See `obtain_samples`.
            progress: See `obtain_samples`.
            reset_options: A dict for `env.reset(options=…)` in each episode that starts in this call, or None. Restored
                episodes are reset with their original options.
            restore_limit: Timesteps, at least 0. Actions of longer episodes are not stored; after a loss, or from a
                `state_dict`, a new episode starts instead, with a warning.

        Raises:
            UsageError: An argument is invalid; or the sampler has `order="arrival"`, `on_failure="drop"`, a kind of
                worker without fragments, or an agent or environment for each worker. For the other errors see
                `obtain_samples`.
        """
        if isinstance(agent_update, numbers.Integral) or type(agent_update) is float:
            raise UsageError(
                f"obtain_fragments({n_timesteps!r}, {n_envs!r}, {agent_update!r}): the arguments are (n_timesteps, "
                "n_envs=None, agent_update=None, env_update=None, progress=False). The third must update the agent, "
                "and a number cannot. (Put a single number into a tuple if it is the agent's parameter.)"
            )
        n_timesteps = positive("n_timesteps", n_timesteps)
        self._life.check_usable()
        n_envs = self._usual_envs if n_envs is None else positive("n_envs", n_envs)
        limit = positive("restore_limit", restore_limit, least=0)
        self._check_fragments(n_envs, agent_update, env_update)
        factory = self._setup.workers.factory
        plan = Fragments(
            n_timesteps, n_envs, self.n_workers, factory.fragment_rows,
            side_by_side=factory.worker_class.continues_side_by_side, restore_limit=limit,
        )  # fmt: skip
        batch = self._obtain(plan, agent_update, env_update, progress, common_resets(reset_options))
        self._life.n_envs = n_envs
        return batch

    @property
    def _usual_envs(self) -> int:
        """The number of environments for calls without `n_envs`; independent of the number of workers."""
        return self._life.n_envs or self._setup.most_envs or max(_N_ENVS, self.layout.rows)

    def _check_fragments(self, n_envs: int, *updates: Any) -> None:
        self.refuse_prefetching("fragments")
        if (most := self._setup.most_envs) is not None and n_envs > most:
            raise UsageError(
                f'obtain_fragments was called for {n_envs} environments, but this sampler with inference="parent" has '
                f'{most}: pass worker_args={{"n_envs": {n_envs}}} to the sampler'
            )
        if self._setup.order != "index":
            raise UsageError('fragments need order="index", because each environment has its place in the batch')
        worker_class, hooks = self._setup.workers.factory.worker_class, self._setup.workers.hooks
        if issubclass(worker_class, WorkerWithSeams) and worker_class.overrides_seams():
            raise UsageError(
                f"fragments do not call the methods that {worker_class.__name__} overrides (begin_trajectory, "
                "before_step, after_step, end_trajectory): pass hooks=, wrap the environment or the agent, or use "
                "obtain_trajectories"
            )
        if hooks is not None and hooks.drop_if is not None:
            raise UsageError(
                "fragments do not support drop_if, because earlier calls have already returned parts of the episode. "
                "End such episodes in a wrapper of the environment, or use obtain_trajectories"
            )
        if self._setup.policy.drops:
            raise UsageError(
                'fragments need on_failure="raise", because no other episode can replace a failed one in the batch'
            )
        if not worker_class.can_continue:
            raise UsageError(
                f"{worker_class.__name__} does not support fragments: use DefaultWorker, or obtain_trajectories"
            )
        if self._life.session.store.latest.differ or any(items_by_worker(update) is not None for update in updates):
            raise UsageError(
                "fragments need the same agent and environment in all workers, because episodes must not depend on the "
                "number of workers. Pass an id or a function that makes an environment to the sampler, and the number "
                "of environments to the call: obtain_fragments(128, n_envs=16)"
            )

    @property
    def fingerprint(self) -> CheckMode:
        """The reaction to workers with different arithmetic: "warn", "error" or None."""
        return self._setup.workers.fingerprint

    @property
    def policy_names(self) -> tuple[str, ...]:
        """Names of several policies; empty with a single agent."""
        return self._setup.policy_names

    @property
    def total_env_steps(self) -> int:
        """Timesteps returned by all calls so far, plus those of `warm_up`."""
        return self.stats.kept_timesteps

    def __repr__(self) -> str:
        state = "closed" if self._life.is_closed else f"agent version {self.agent_version}"
        return f"{type(self).__name__}({self.n_workers} workers, seed {self.seed}, {state})"
