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
from streamsampler.data.taken import check_record_taken
from streamsampler.protocol.limits import DEFAULT_LIMITS, Limits, Quota, limits_of
from streamsampler.protocol.plans import Fragments
from streamsampler.protocol.restarts import OnFailure, Policy
from streamsampler.protocol.result import Order
from streamsampler.samplers.lagging import Lag, check_staleness
from streamsampler.samplers.life import SamplerLife, SamplerSetup
from streamsampler.samplers.obtaining import ObtainingSampler
from streamsampler.samplers.options import SamplerOptions
from streamsampler.samplers.per_worker import Agents, Envs, items_by_worker
from streamsampler.samplers.tasks import Checking, refuse_calls
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
            belongs to worker `i % n_workers`, so results depend on the number of workers. If the callable, or the id's
            entry point, has a parameter `worker_number`, it receives 0 to n_workers-1, for ports, file names and
            devices; trajectories must not depend on it. To give a `VecWorker` a different environment for each row, see
            `streamsampler.environments.PerEnv`.
        env_kwargs: Keyword arguments for making the environment where `envs` is an id, an `EnvSpec` (added to its own
            arguments) or a callable. Each item of a list receives them. They do not apply to an `env_update`.
        n_workers: Number of workers. None for the length of `agents` or `envs` if either is a list, else for the number
            of cores available to this process (`LocalSampler`: 1).
        seed: A non-negative integer from which all randomness is derived; None draws fresh entropy.
        max_episode_length: Timesteps after which a trajectory is truncated; None or `math.inf` for the environment's
            own limit. If a trajectory runs for more than ten times the timesteps requested from `obtain_samples`, a
            warning is logged once (not by `LocalSampler`, which cannot check while it steps).
        worker_class: The kind of worker: a subclass of `Worker`.
        worker_args: Further keyword arguments for the workers.
        order: "index" returns trajectories 0, 1, 2, …, as a single process would have sampled them. "arrival" returns
            the trajectories that finish first, whatever their indices (in `obtain_exact_trajectories`, each worker's
            first), and so over-represents short trajectories.
        on_failure: "raise" ends the call when user code raises in a trajectory needed for the batch. "drop" leaves the
            trajectory out, records its error in the statistics, and completes the batch with the next indices. If
            failures depend on the state, the remaining data are biased.
        max_restarts: Number of dead or hung workers replaced within any 60 seconds (`limits.restart_window`). The lost
            trajectories are run again, so the batch does not change. One more loss ends the call with an error listing
            all of them. "auto" for 10 with up to eight workers, and in proportion with more. None for no limit, except
            that the same exception three times in one trajectory is an error. Losses in trajectories not needed for the
            batch do not count. Each task of a suite has its own quota, as have deaths of workers without a ticket.
        restart_on: An exception type, or a tuple of types: if user code raises one, it counts as a loss.
        trajectory_timeout: Seconds allowed for a trajectory in waiting environments (`AsyncWorker`). A longer
            trajectory is cancelled and run again; the third time is an error, or drops it with `on_failure="drop"`. See
            `streamsampler/docs/waiting.md`.
        limits: Limits of time, memory and restarts, with defaults for most programs; see `Limits`.
        check: "warn" checks, and logs a warning once, whether trajectories depend on more than their seeds, so that
            batches would differ with the number of workers, and whether data may be wrong; "error" ends the call
            instead; None checks nothing. In the first call, and after an `env_update` to another class or id (not after
            a `SetTaskUpdate`), worker 0 runs trajectory 0, a different trajectory, and trajectory 0 again with its own
            agent and environment, and compares up to 200 timesteps with their infos. Infos that differ between two new
            environments, too, such as clock times, are named in a warning but are not a failure. "warn" starts no reset
            or timestep of the check after 0.2 seconds; "error" runs all of it, before other workers start. Wrappers
            known to carry state between trajectories, such as `NormalizeObservation`, are recognised without a run. An
            exception during the check proves nothing. Its timesteps are counted in `stats.checked_timesteps`.
        fingerprint: How to react to workers with different arithmetic: NumPy and torch choose their kernels by the
            processor, and different kernels give different last bits, hence different trajectories. Each worker
            computes a small probe once and sends its digest with its first report. "warn" logs a warning with the
            workers and machines that differ; "error" ends the call; None ignores it. `batch.fingerprints` has the
            digests in any case.
        worker_threads: Threads for numerical libraries in each worker; the last bits of a network's outputs may depend
            on it. Sets environment variables such as OMP_NUM_THREADS where unset, for libraries loaded later; torch's
            number if torch is loaded; and, with threadpoolctl installed, those of a loaded OpenBLAS or MKL. Variables
            you set yourself take precedence, except for torch. Without threadpoolctl, a NumPy that is already loaded
            (in `LocalSampler`, and in workers forked from your program) keeps its own number. `LocalSampler` restores
            the previous numbers after each call or step of a stream. A library loaded during a trajectory is limited
            from the next ticket on. None changes nothing.
        observation_filter: A filter of the observations given to the agent, such as `RunningNorm`; its statistics are
            part of the agent version, see `streamsampler/docs/hooks-and-filters.md`. With several policies, a dict of
            filters by policy name.
        reward_filter: The same for rewards, such as `RunningReturnNorm`.
        hooks: An object with any of `on_environment_created(env, worker_number)`, `on_trajectory_start(context)`,
            `on_timestep(context)`, `on_trajectory_end(context)` and `on_trajectory_lost(context, error)`, called in the
            workers; see `streamsampler/docs/hooks-and-filters.md`. Values written to the context's `metrics` are
            returned in `batch.episode_infos`, and as a number for each name in `batch.stats.metrics`. Without hooks
            this costs nothing. Not for vector environments.
        drop_if: A function of an info, called with the info of each reset and timestep. If the result is true, the
            trajectory is abnormal: it ends, and is dropped and counted as with `on_failure="drop"`. If this depends on
            the state, the remaining data are biased. Not for fragments.
        record_taken: The name of an info with the action that the environment really took, such as "action_taken", to
            record in place of the agent's; see `streamsampler.data.taken`. None records the agent's.
        staleness: 0 samples each batch with the parameters given to its call. 1 uses those of the call before, so that
            workers sample the next batch while you learn from the last; see `streamsampler/docs/sampling.md`.
        policy_of: In environments of several agents, which policy of `agents={"name": agent}` acts for which agent: a
            function `(agent_id, trajectory_index) -> name`, called once for each agent and trajectory, or a dict by
            agent id. None for the policy named like the agent id, or like the agent id up to its last `_`, or the only
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
        given = Checking(factory, worker_class, filters, policy_of, env_kwargs, holds_agent).given(agents, envs)
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
        lag = Lag() if check_staleness(staleness, order, filters) else None
        if lag is not None:
            refuse_calls(given.tasks, "staleness=1")
        env_facts = () if given.tasks else given.updates.about("env")
        self._setup = SamplerSetup(workers, order, policy, given.policy_names, holds_agent, env_facts, given.tasks)
        self._life = SamplerLife(self._setup, self.make_engine, given.updates, filters, lag)

    @classmethod
    def from_worker_factory(
        cls, worker_factory: WorkerFactory, agents: Agents, envs: Envs, **options: Unpack[SamplerOptions]
    ) -> Self:
        """Make a sampler with workers from `worker_factory`.

        The same as garage's `MultiprocessingSampler(worker_factory, agents, envs)`, in a form known to type checkers.

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
            raise TypeError(f"{name} takes {', '.join(twice)} from the worker factory: give it there")
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

        An environment is reset only where an episode ends, or by an `env_update`. Trajectories in the batch are parts
        of episodes, ordered by environment, then time. `batch.continued` marks parts started in an earlier call,
        `batch.cut` parts that continue in the next call (neither terminated nor truncated; bootstrap from
        `last_observations`), and `batch.as_grid("rewards")` has shape (n_timesteps, n_envs). `batch.returns` are of
        parts; `batch.episode_returns` and `batch.episode_lengths` are of episodes that ended in this call.

        The environment is stepped with each action as recorded: floats are first cast to the action space's dtype. (In
        whole trajectories the environment receives the agent's own value.)

        Episode k of environment e has index `e + k * n_envs` and the seed of this trajectory under the agent version in
        which the environments started; errors give both numbers. So episodes depend on the sampler's seed, on e, and on
        the arguments of each call, not on the number of workers. If a worker is lost, its episodes are restored by
        applying their actions again, and the lost timesteps are run again. This needs an agent without a `reset` (and
        without ``starts``, see `Agent`), or with `get_state()` and `set_state(state)`, and an environment that is a
        function of its seed and the actions: agent and environment must not draw from the same global generator, nor,
        with `VecWorker`, may several environments. Otherwise, or if something raises during it, the episode counts as
        failed and a new episode starts, with a warning.

        A callable that makes environments must return a new environment each time, because several run at once.

        Calls for whole trajectories in between, evaluations included, do not disturb the episodes: they run in
        environments of their own, made when first needed (`stats.further_envs`). The single agent of
        `inference="parent"` has its memory restored afterwards, which needs `get_state()` and `set_state(state)`. If
        the callable returns the same environment each time, episodes are restored in it as after a loss; so they are in
        a pickled copy of the sampler, and after `load_state_dict`. An `env_update` in any call (with a warning),
        another `n_envs` and an exception in a call for fragments end the episodes: the next call starts with fresh
        environments. Fragments do not work with `on_failure="drop"`: a dropped episode would leave a hole in the grid.

        Args:
            n_timesteps: Timesteps for each environment, at least 1.
            n_envs: Number of environments of all workers together, at least 1; environment e belongs to worker
                `e % n_workers`. None for the number in the last call for fragments; in the first call 8, or the
                `n_envs` of `VecWorker` if larger, whatever the number of workers. Another number than in the last call
                starts fresh environments, with a warning. With `VecWorker`, groups of its `n_envs` environments are
                assigned to the workers in turn: the groups are the same for any number of workers. With
                `inference="parent"`, `VecWorker`'s `n_envs` is the maximum and the default.
            agent_update: See `obtain_samples`. An agent replaced during an episode is reset.
            env_update: See `obtain_samples`.
            progress: See `obtain_samples`.
            reset_options: A dict for `env.reset(options=…)` in each episode that starts in this call, or None. Restored
                episodes are reset with their original options.
            restore_limit: Timesteps, at least 0. Actions of longer episodes are not stored; after a loss, or from a
                `state_dict`, a new episode starts instead, with a warning.

        Raises:
            UsageError: A number is not a positive integer, or `reset_options` is not a dict; the sampler has
                `order="arrival"`, `on_failure="drop"`, a kind of worker without fragments, or an agent or environment
                for each worker. For the other errors see `obtain_samples`.
        """
        if isinstance(agent_update, numbers.Integral) or type(agent_update) is float:
            raise UsageError(
                f"obtain_fragments({n_timesteps!r}, {n_envs!r}, {agent_update!r}): the arguments are (n_timesteps, "
                "n_envs=None, agent_update=None, env_update=None, progress=False). The third one updates the agent, "
                "which a number cannot. (A parameter that is a number goes into a tuple.)"
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
        self.refuse_lag("fragments")
        if (most := self._setup.most_envs) is not None and n_envs > most:
            raise UsageError(
                f'obtain_fragments of {n_envs} environments: with inference="parent" there are {most}; pass '
                f'worker_args={{"n_envs": {n_envs}}} to the sampler for more'
            )
        if self._setup.order != "index":
            raise UsageError('fragments need order="index": each environment has its place in the batch')
        worker_class, hooks = self._setup.workers.factory.worker_class, self._setup.workers.hooks
        if issubclass(worker_class, WorkerWithSeams) and worker_class.overrides_seams():
            raise UsageError(
                f"fragments do not call what {worker_class.__name__} overrides (begin_trajectory, before_step, "
                "after_step, end_trajectory): pass hooks=, wrap the environment or the agent, or use "
                "obtain_trajectories"
            )
        if hooks is not None and hooks.drop_if is not None:
            raise UsageError(
                "fragments take no drop_if: what an earlier call returned of an episode cannot be left out any more. "
                "Let a wrapper of the environment end such an episode, or use obtain_trajectories"
            )
        if self._setup.policy.drops:
            raise UsageError(
                'fragments need on_failure="raise": where an episode raises, no other one takes its place in the batch'
            )
        if not worker_class.can_continue:
            raise UsageError(f"{worker_class.__name__} runs no fragments: use DefaultWorker, or obtain_trajectories")
        if self._life.session.store.latest.differ or any(items_by_worker(update) is not None for update in updates):
            raise UsageError(
                "fragments need one agent and one environment for all workers: an environment's episodes are the same "
                "whatever the number of workers. Pass an id or a function that makes one environment, and their number "
                "to the call: obtain_fragments(128, n_envs=16)"
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
