"""Check the arguments of all samplers, and say what they did."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, Self, TypeVar, Unpack

from streamsampler.agents.policies import PolicyOf
from streamsampler.data.generics import ActionsT, ObservationsT, brackets
from streamsampler.environments.updates import as_env_update
from streamsampler.errors import CheckMode, UsageError, check_mode
from streamsampler.filters.base import Filter, Filters
from streamsampler.samplers.fragmenting import FragmentingSampler
from streamsampler.samplers.lagging import Lag, check_staleness
from streamsampler.samplers.of_policies import check_policies, policies_of
from streamsampler.samplers.options import SamplerOptions
from streamsampler.samplers.payloads import pickled_environments, put, put_agents
from streamsampler.samplers.per_worker import Agents, Envs, items_by_worker
from streamsampler.samplers.updates import Updates
from streamsampler.scheduling.restarts import OnFailure, Policy, Quota
from streamsampler.scheduling.result import Order
from streamsampler.serialization import Payload, dumps
from streamsampler.workers.base import Worker
from streamsampler.workers.default import DefaultWorker
from streamsampler.workers.factory import WorkerFactory, WorkerSetup
from streamsampler.workers.hooks import pickled_hooks
from streamsampler.workers.leaving_out import raises_all
from streamsampler.workers.threads import check_threads

__all__ = ["Sampler", "with_all_arguments", "with_factory"]

P = ParamSpec("P")
ClassT = TypeVar("ClassT", bound=type)


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


def with_all_arguments(*others: type) -> Callable[[ClassT], ClassT]:
    """Let the docstring of a sampler explain all arguments, for `help`; in the source each stands once.

    Args:
        others: The classes whose docstrings explain the arguments that the class's own only refers to.
    """

    def decorate(cls: ClassT) -> ClassT:
        if not cls.__doc__:  # Python runs without docstrings
            return cls
        known: dict[str, str] = {}
        for each in (*others, cls):
            own = _arguments_in(inspect.getdoc(each) or "")
            known |= {name: text for name, text in own.items() if name not in known or ": See `" not in text}
        arguments = "".join(known[name] for name in inspect.signature(cls).parameters)
        first, *sections = re.split(r"\n\n(?=Args:\n|Attributes:\n|Raises:\n)", inspect.cleandoc(cls.__doc__))
        rest = [section for section in sections if not section.startswith("Args:\n")]
        cls.__doc__ = "\n\n".join([first, f"Args:\n{arguments.rstrip()}", *rest])
        return cls

    return decorate


def _arguments_in(doc: str) -> dict[str, str]:
    """Return what a docstring says of each argument, by name, each text with its name and its line ends."""
    section = doc.partition("\nArgs:\n")[2].partition("\n\n")[0]
    return {
        text.split(":")[0].strip(): text.rstrip() + "\n" for text in re.split(r"(?m)^(?=    \w+: )", section) if text
    }


class Sampler(FragmentingSampler[ObservationsT, ActionsT], Generic[ObservationsT, ActionsT]):
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
            names and devices; a trajectory must not depend on it.
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
        max_restarts: How many dead or hung workers are replaced within any `restart_window` seconds; None for any
            number, and "auto" for 10 with up to eight workers, in proportion with more. Such a loss does not change
            the batch: the trajectories are run again. One loss more ends the call with an error that lists them all. A
            loss in a trajectory that the batch does not need does not count.
        restart_window: Seconds; None for the sampler's whole life.
        max_lifetime_restarts: How many workers are replaced in the sampler's whole life; None for any number, and
            "auto" for 100 with up to eight workers, in proportion with more.
        restart_on: Types of exceptions of user code that count as losses, too: an exception type, or a tuple of them.
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
            and machines that differ, and the environment variables that make them agree; "error" ends the call; None
            says nothing. `batch.fingerprints` has the digests in any case.
        worker_threads: How many threads numerical libraries compute on in each worker; the last bits of a network's
            numbers may depend on it. Set are torch's number where it is loaded, those of OpenBLAS and MKL, and, for
            what is loaded later, environment variables such as OMP_NUM_THREADS where they are unset. Variables that
            you have set count for what reads them, but for torch. `LocalSampler` sets the same numbers while a call
            runs, or a step of a stream, and puts back what it found. A library that is loaded in the middle of a
            trajectory is held to it from the next ticket on. None leaves all as it is.
        observation_filter: What changes the observations that the agent sees, such as `RunningNorm`, with statistics
            that are part of the agent version; see `streamsampler.filters`. With several policies, a dict of filters
            by policy name.
        reward_filter: The same for rewards, such as `RunningReturnNorm`.
        hooks: An object with any of `on_trajectory_start(context)`, `on_timestep(context)`,
            `on_trajectory_end(context)` and `on_trajectory_lost(context, error)`, which workers call; see
            `streamsampler.workers.hooks`. What they put into their context's `metrics` comes back in
            `batch.episode_infos`, and as one number for each name in `batch.stats.metrics`. Without hooks
            they cost nothing. Not for fragments, nor for vector environments.
        drop_if: A function of an info. It is called with the info of each trajectory's reset and of each timestep's
            step; where it returns something true, the trajectory is abnormal: it ends there, and is left out and
            counted as with `on_failure="drop"`. Where that depends on the state, what is left is biased.
        staleness: 0 samples each batch with the parameters that came with its call. 1 samples it with those of the call
            before, so that workers sample the next batch while you learn from the last one: see "One version behind" in
            `streamsampler.samplers`.
        policy_of: In environments of several agents, which of the policies of `agents={"name": agent}` plays which: a
            function `(agent_id, trajectory_index) -> name`, asked once for each agent and trajectory, or a dict by
            agent id. None for the policy whose name is the agent id, or the agent id up to its last `_`, or the only
            one. See `streamsampler.several_agents`.

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
    _given_factory: WorkerFactory | None = None
    _limits: Mapping[str, Any] = {}
    """Arguments of `Policy` that only some samplers have; a subclass sets them before it calls `__init__`."""

    @with_factory
    def __init__(
        self,
        agents: Agents,
        envs: Envs,
        *,
        env_kwargs: Mapping[str, Any] | None = None,
        n_workers: int | None = None,
        seed: int | None = None,
        max_episode_length: float | None = None,
        worker_class: type[Worker] = DefaultWorker,
        worker_args: Mapping[str, Any] | None = None,
        order: Order = "index",
        on_failure: OnFailure = Policy.on_failure,
        max_restarts: Quota = Policy.max_restarts,
        restart_window: float | None = Policy.restart_window,
        max_lifetime_restarts: Quota = Policy.max_lifetime_restarts,
        restart_on: type[BaseException] | tuple[type[BaseException], ...] = Policy.restart_on,
        check: CheckMode = "warn",
        fingerprint: CheckMode = "warn",
        worker_threads: int | None = 1,
        observation_filter: Filter | Mapping[str, Filter] | None = None,
        reward_filter: Filter | Mapping[str, Filter] | None = None,
        hooks: Any = None,
        drop_if: Callable[[dict[str, Any]], Any] | None = None,
        staleness: int = 0,
        policy_of: PolicyOf | None = None,
    ) -> None:
        filters = Filters(observation_filter, reward_filter)
        agents = policies_of(agents, policy_of)
        self.policy_names = check_policies(agents, worker_class, staleness, filters)
        policy = self._policy = Policy(
            on_failure=on_failure,
            max_restarts=max_restarts,
            restart_window=restart_window,
            max_lifetime_restarts=max_lifetime_restarts,
            restart_on=(restart_on,) if isinstance(restart_on, type) else restart_on,
            **self._limits,
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
        drop_unless = policy.restarts_on if policy.on_failure == "drop" else None
        if drop_if is not None:
            # The policy is to leave trajectories out, since the batch has gaps; what raises is raised all the same.
            policy = self._policy = replace(policy, on_failure="drop")
            drop_unless = drop_unless or raises_all
        self._setup = WorkerSetup(
            factory,
            check_threads(worker_threads),
            check_mode(check),
            drop_unless,
            fingerprint=check_mode(fingerprint, "fingerprint"),
            hooks=pickled_hooks(hooks, drop_if),
        )
        if order not in ("index", "arrival"):
            raise UsageError(f'order must be "index" or "arrival", got {order!r}')
        self._order: Order = order
        updates: Updates[Payload] = Updates(self._setup.n_workers)
        put_agents(updates, agents, self._setup.n_workers, held=self._holds_agent)
        as_env = partial(as_env_update, env_kwargs=env_kwargs)
        put(updates, "env", pickled_environments(envs, self._setup.n_workers, "envs", "the environment", as_env))
        dumps(filters, "the filters")
        lag = Lag() if check_staleness(staleness, order, filters) else None
        self._begin_life(updates, 0, filters, lag)

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
        return cls._from_factory(worker_factory, agents, envs, options)

    @classmethod
    def _from_factory(
        cls, worker_factory: WorkerFactory, agents: Agents, envs: Envs, options: Mapping[str, Any]
    ) -> Self:
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

    # ------------------------------------------------------------------ accounts

    @property
    def fingerprint(self) -> CheckMode:
        """What is done about workers that compute otherwise than others."""
        return self._setup.fingerprint

    @property
    def total_env_steps(self) -> int:
        """Timesteps that were returned, in all calls so far; and those of `warm_up`, whose statistics are used."""
        return self.stats.kept_timesteps

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"agent version {self.agent_version}"
        return f"{type(self).__name__}({self.n_workers} workers, seed {self.seed}, {state})"
