"""Check the arguments of all samplers, and say what they did."""

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
    """Let a sampler's constructor be called as garage's: `MultiprocessingSampler(worker_factory, agents, envs)`.

    For type checkers that is `from_worker_factory`.
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
    """Collect trajectories; a subclass decides where the workers live.

    The arguments of all samplers are documented here, in one place. Those that only one kind of sampler has are
    documented there.

    Args:
        agents: An agent (see `Agent`), a plain callable `observation -> action`, "random", or a list or `PerWorker`
            with one for each worker. For environments of several agents, a dict of them by policy name.
        envs: An id for `gymnasium.make`, a callable that makes an environment, an environment, an `EnvSpec`, an
            `EnvUpdate`, or a list or `PerWorker` with one for each worker. With one for each worker, index i of a batch
            belongs to worker `i % n_workers`, and results depend on the number of workers. A callable, or an id's entry
            point, with a parameter `worker_number` is given the worker's number, 0 to n_workers-1, for ports, file
            names and devices; a trajectory must not depend on it. For one environment for each of those that a
            `VecWorker` runs side by side, see `streamsampler.environments.PerEnv`.
        env_kwargs: Keyword arguments for making the environment, where `envs` is an id, an `EnvSpec` or a callable; for
            an `EnvSpec`, in addition to its own. With one environment for each worker each of them gets these. They do
            not apply to an `env_update`.
        n_workers: How many workers; None for as many as `agents` or `envs` have items, where these are given for each
            worker, else for as many as this process may use cores (`LocalSampler`: 1).
        seed: A non-negative integer that everything random is derived from; None draws fresh entropy.
        max_episode_length: Timesteps after which a trajectory is truncated; None or `math.inf` leaves that to the
            environment. A trajectory that still runs with more than ten times the timesteps that `obtain_samples` needs
            is reported once in the log, for it may never end; but not by `LocalSampler`, which cannot look meanwhile.
        worker_class: The kind of worker: a subclass of `Worker`.
        worker_args: Further keyword arguments for it.
        order: "index" returns trajectories 0, 1, 2, …, as one process would have sampled them. "arrival" returns
            whatever finishes first, which over-represents short trajectories: the first that arrive, whatever their
            indices (but in `obtain_exact_trajectories` those that belong to each worker).
        on_failure: "raise" ends the call when user code raises in a trajectory that the batch needs. "drop" leaves that
            trajectory out, notes it in the accounts with its error, and completes the batch with the next indices.
            Where failures depend on the state, what is left is biased.
        max_restarts: How many dead or hung workers are replaced within any 60 seconds (`limits.restart_window`); None
            for any number of losses that are not equal: three times the same exception in one trajectory is an error
            then; "auto" for 10 with up to eight workers, in proportion with more. Such a loss does not change the
            batch: the trajectories are run again. The next loss ends the call with an error that lists them all. A loss
            in a trajectory that the batch does not need does not count. The quota holds for each task of a suite by
            itself; deaths of workers without work are of no task, and have a quota of their own.
        restart_on: Types of exceptions of user code that count as losses, too: an exception type, or a tuple of them.
        trajectory_timeout: Seconds that a trajectory may take, in environments that wait (`AsyncWorker`). One that
            takes longer is cancelled and run again; the third time is an error. With `on_failure="drop"` it is left
            out. See `streamsampler/docs/waiting.md`.
        limits: Limits of time, memory and restarts whose defaults fit most programs; see `Limits`.
        check: What is done about environments and agents whose trajectories depend on more than their seeds, so that
            batches differ with the number of workers, and about data that may be wrong. "warn" logs a warning, once;
            "error" ends the call; None looks for nothing. In the first call, and after an `env_update` to an
            environment of another class or id (never for a `SetTaskUpdate`), worker 0 runs trajectory 0, another one,
            and trajectory 0 again, with the agent and environment that it has, and compares up to 200 timesteps, infos
            included. Infos that differ also where two new environments each run trajectory 0 first, as what is read off
            a clock does, are no memory: a warning names them. With "warn" no reset or timestep of this begins after 0.2
            seconds; with "error" all of it is run, and before that no other worker begins. Wrappers that are known to
            carry something from one trajectory to the next, such as `NormalizeObservation`, are recognised without
            running anything. What raises in the check is no verdict. Its timesteps are `stats.checked_timesteps`.
        fingerprint: What is done about workers that compute otherwise than others: NumPy and torch choose their kernels
            by the processor, and other kernels give other last bits, and so other trajectories. Each worker computes a
            small probe once, and tells its digest with its first report. "warn" logs a warning that names the workers
            and machines that differ; "error" ends the call; None says nothing. `batch.fingerprints` has the
            digests in any case.
        worker_threads: How many threads numerical libraries compute on in each worker; the last bits of a network's
            numbers may depend on it. Set are environment variables such as OMP_NUM_THREADS where they are unset, for
            what is loaded later; torch's number where it is loaded; and those of OpenBLAS and MKL where they are, if
            threadpoolctl is installed. Variables that you have set count for what reads them, but for torch. Without
            threadpoolctl a NumPy that is loaded before computes on as many threads as it likes: in `LocalSampler`, and
            in workers that are forked from your program. `LocalSampler` sets the same numbers while a call
            runs, or a step of a stream, and puts back what it found. A library that is loaded in the middle of a
            trajectory is held to it from the next ticket on. None leaves all as it is.
        observation_filter: What changes the observations that the agent sees, such as `RunningNorm`, with statistics
            that are part of the agent version; see `streamsampler/docs/hooks-and-filters.md`. With several policies, a
            dict of filters by policy name.
        reward_filter: The same for rewards, such as `RunningReturnNorm`.
        hooks: An object with any of `on_environment_created(env, worker_number)`, `on_trajectory_start(context)`,
            `on_timestep(context)`, `on_trajectory_end(context)` and `on_trajectory_lost(context, error)`, which workers
            call; see `streamsampler/docs/hooks-and-filters.md`. What they put into their context's `metrics` comes back
            in `batch.episode_infos`, and as one number for each name in `batch.stats.metrics`. Without hooks they cost
            nothing. Not for vector environments.
        drop_if: A function of an info. It is called with the info of each trajectory's reset and of each timestep's
            step; where it returns something true, the trajectory is abnormal: it ends there, and is left out and
            counted as with `on_failure="drop"`. Where that depends on the state, what is left is biased. Not for
            fragments.
        record_taken: The name of an info in which environments say which action they took, such as "action_taken":
            that one is recorded in place of the agent's; see `streamsampler.data.taken`. None records the agent's.
        staleness: 0 samples each batch with the parameters that came with its call. 1 samples it with those of the call
            before, so that workers sample the next batch while you learn from the last one: see
            `streamsampler/docs/sampling.md`.
        policy_of: In environments of several agents, which of the policies of `agents={"name": agent}` plays which: a
            function `(agent_id, trajectory_index) -> name`, asked once for each agent and trajectory, or a dict by
            agent id. None for the policy whose name is the agent id, or the agent id up to its last `_`, or the only
            one. See `streamsampler/docs/several-agents.md`.

    Attributes:
        seed: The seed, drawn or given. `type(sampler)(…, seed=sampler.seed)` repeats everything.
        n_workers: How many workers there are.
        policy_names: The names of several policies; none where there is one agent.
        stats: What all calls together did.

    Raises:
        UsageError: An argument cannot work (a ValueError).
        SerializationError: An agent or an environment cannot be pickled.
    """

    if not TYPE_CHECKING:
        __class_getitem__ = classmethod(brackets)

    _default_workers: int | None = None
    _holds_agent = False
    """Whether the agent stays in this process, as it is; a subclass sets it before it calls `__init__`."""
    _given_factory: WorkerFactory | None = None
    _step_timeout: float | None = None  # a subclass whose workers can be killed sets it before it calls `__init__`
    _lacks_limits: Mapping[str, str] = {}
    """The limits that this kind of sampler cannot keep, with the reasons."""

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
            # The policy is to leave trajectories out, since the batch has gaps; what raises is raised all the same.
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
        """Make a sampler whose workers come from `worker_factory`.

        garage's `MultiprocessingSampler(worker_factory, agents, envs)` does the same; type checkers know this one only.

        Args:
            worker_factory: How many workers, of which kind, with which seed and arguments.
            agents: See `Sampler`.
            envs: See `Sampler`.
            options: The sampler's other arguments, by keyword.

        Raises:
            TypeError: An option is none of the sampler's arguments, or is one of the worker factory's.
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
        """Return exactly `n_timesteps` timesteps of each of `n_envs` environments, whose episodes go on afterwards.

        An environment is reset only where an episode ends, or with an `env_update`. The batch's trajectories are the
        parts of episodes, in order of environment, then time: `batch.continued` says which began in an earlier call,
        `batch.cut` which go on in the next one (they are neither terminated nor truncated, and `last_observations` is
        what to bootstrap from), and `batch.as_grid("rewards")` is of (n_timesteps, n_envs). `batch.returns` are those
        of parts; `batch.episode_returns` and `batch.episode_lengths` are of the episodes that ended in this call.

        The environment is stepped with each action as the batch has it: where an agent's floats have another dtype than
        the action space, they are rounded first. (In whole trajectories the environment gets what the agent returned.)

        Episode k of environment e has index `e + k * n_envs`, and the seed of that trajectory of the version in which
        the environments began; errors name it by these two. So an environment's episodes are a function of the
        sampler's seed, of e, and of what each call was given, whatever the number of workers. With a worker that is
        lost go its episodes: they are restored by applying their actions again, and what was lost is run again. That
        needs an agent without a `reset` (and without ``starts``, see `Agent`), or with `get_state()` and
        `set_state(state)`, and an environment that is a function of its seed and the actions: the same global generator
        must not be drawn from by agent and environment, nor, with `VecWorker`, by several environments. Otherwise, or
        if something raises meanwhile, the episode counts as failed, and a new one begins there, with a warning.

        What makes environments must make a new one each time: several go on side by side.

        Whole trajectories in between, evaluations included, leave the episodes where they are: they run in environments
        of their own, which are made when they are first needed (`stats.further_envs`). The one agent of
        `inference="parent"` is given its memory back, for which it needs `get_state()` and `set_state(state)`. Where
        the same environment is made each time, episodes are restored in it as after a loss. So they are in a copy of
        the sampler by pickling, and in one that loads its `state_dict`. An `env_update` in any call (with a warning),
        other `n_envs` and an exception in a call for fragments end the episodes: the next call begins with fresh
        environments. With `on_failure="drop"` fragments are an error, since no other episode takes the place of an
        episode that raises: its timesteps would be missing in the grid.

        Args:
            n_timesteps: Timesteps of each environment, at least 1.
            n_envs: How many environments all workers have together, at least 1: worker w has those whose number is w
                modulo the number of workers. None for as many as in the last call of fragments; in the first one for 8,
                or for `VecWorker`'s own `n_envs` where these are more, whatever the number of workers. Another number
                than in the last call begins with fresh environments, and a warning. With `VecWorker`, whose own
                `n_envs` step side by side, groups of so many belong to the workers in turn: a group is the same on any
                number of workers. With `inference="parent"` there are at most `VecWorker`'s `n_envs`, and so many if
                this is None.
            agent_update: See `obtain_samples`. An agent that is replaced in the middle of an episode is reset.
            env_update: See `obtain_samples`.
            progress: See `obtain_samples`.
            reset_options: A dict that `env.reset(options=…)` gets in each episode that begins in this call; None for
                none. An episode that is restored is reset with those that it began with.
            restore_limit: Timesteps, at least 0: of longer episodes the actions are not kept, and after a loss, or from
                a `state_dict`, a new episode begins there, with a warning.

        Raises:
            UsageError: A number is no positive integer, or `reset_options` is no dict; the sampler has
                `order="arrival"`, `on_failure="drop"`, a kind of worker that runs no fragments, or agents or
                environments of their own for its workers. For the other errors see `obtain_samples`.
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
        """How many environments there are where a call does not say it: no matter how many workers there are."""
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
        """What is done about workers that compute otherwise than others."""
        return self._setup.workers.fingerprint

    @property
    def policy_names(self) -> tuple[str, ...]:
        """The names of several policies; none where there is one agent."""
        return self._setup.policy_names

    @property
    def total_env_steps(self) -> int:
        """Timesteps that were returned, in all calls so far; and those of `warm_up`, whose statistics are used."""
        return self.stats.kept_timesteps

    def __repr__(self) -> str:
        state = "closed" if self._life.is_closed else f"agent version {self.agent_version}"
        return f"{type(self).__name__}({self.n_workers} workers, seed {self.seed}, {state})"
