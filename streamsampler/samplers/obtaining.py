"""The obtaining calls of all samplers, for numbers of timesteps and trajectories, and as streams."""

from __future__ import annotations

import functools
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeAlias, get_args, overload

import numpy as np

from streamsampler.core.errors import UsageError, missing_attribute, positive, refuse_two_numbers
from streamsampler.core.keywords import suggesting
from streamsampler.core.progress import ProgressArgument, display
from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.batch_fields import ActionsT, ObservationsT, replaced
from streamsampler.data.info_selection import InfosArgument, InfoSelection
from streamsampler.protocol.plans import AtLeast, Exactly, ExactlyPerWorker, GatherPlan, Layout, Streamed
from streamsampler.protocol.run_twice_checks import TaskChecks
from streamsampler.samplers.call import Call
from streamsampler.samplers.options import refuse_agents, refuse_items
from streamsampler.samplers.owner import LifeOwner
from streamsampler.samplers.payloads import (
    check_side_by_side,
    facts_in,
    makes_environment,
    on_environments,
    pickled_updates,
)
from streamsampler.samplers.per_task import TaskRun, resets_of, sections_of
from streamsampler.samplers.per_worker import Envs
from streamsampler.samplers.provenance import provenance_of
from streamsampler.samplers.streaming import Stream
from streamsampler.samplers.task_streaming import TaskStream
from streamsampler.samplers.tasks import TaskFacts, refuse_calls
from streamsampler.samplers.updates import Kind
from streamsampler.workers.explain import is_interrupt
from streamsampler.workers.resets import (
    Options,
    ResetOptions,
    Resets,
    common_resets,
    given_resets,
    streamed_resets,
    tasks_in_turn,
)


def by_task(batch: TrajectoryBatch[Any, Any]) -> TrajectoryBatch[Any, Any]:
    """Return the batch ordered by task, then by trajectory index."""
    numbers = np.asarray(batch.episode_infos["task_index"])
    if (np.diff(numbers) >= 0).all():
        return batch
    in_order: TrajectoryBatch[Any, Any] = replaced(batch[np.argsort(numbers, kind="stable")], stats=batch.stats)
    return in_order


_OWN_BLOCKS = "if workers have their own agents or environments and run blocks of trajectories together"


def check_first(first: int, block: int, *, differ: bool) -> None:
    """Refuse a stream starting within a block of trajectories that are run together."""
    if block == 1:
        return
    if differ and first:
        raise UsageError(f"first_trajectory must be 0, got {first}, {_OWN_BLOCKS}")
    if first % block:
        raise UsageError(
            f"first_trajectory must be a multiple of {block}, got {first}, because workers run blocks of {block} "
            "trajectories together"
        )


StepCount: TypeAlias = Literal["env_steps", "agent_steps"]
"""The unit of `num_samples` in environments of several agents."""

_TODAYS = {
    "obtain_exact_episodes": "`obtain_exact_trajectories(n_traj_per_worker, agent_update)`",
    "obtain_episodes": "`obtain_trajectories(n_trajectories, agent_update)`",
    "start_worker": "unnecessary: workers start when the sampler is made",
}
"""Methods of garage's samplers, and their replacements here."""


def _with_itr(method: Callable[..., Any]) -> Callable[..., Any]:
    """Accept garage's iteration number as first argument of `obtain_samples`; it has no effect."""

    @functools.wraps(method)
    def taking(self: Any, *args: Any, **options: Any) -> Any:
        if "itr" in options:
            positive("itr", options.pop("itr"), least=0)
        elif args and ("num_samples" in options or _is_integer(*args[1:2])):
            positive("itr, which may come before num_samples,", args[0], least=0)
            args = args[1:]
        elif _is_integer(*args[:1]) and isinstance((*args, None, None)[1], float):
            raise UsageError(
                f"num_samples must be an integer, got {args[1]!r} (a parameter that is a number goes into a tuple)"
            )
        return method(self, *args, **options)

    return taking


def _is_integer(given: Any = None) -> bool:
    return isinstance(given, numbers.Integral) and not isinstance(given, bool)


@suggesting()
class ObtainingSampler(LifeOwner, Generic[ObservationsT, ActionsT]):
    """The calls of all samplers that return trajectories."""

    def _places(self, resets: Resets | None) -> dict[str, Any]:
        """Return `fixed` and `n_of_task` of a plan: which trajectories may replace dropped ones."""
        if resets is None:
            return {}
        n_of_task = resets.n_replaceable if self._setup.policy.drops else None
        return {"fixed": resets.is_fixed and n_of_task is None, "n_of_task": n_of_task}

    @property
    def replaces_trajectories(self) -> bool:
        """Whether later trajectories replace dropped ones, in calls without seeds or options for each trajectory."""
        return self._setup.policy.drops

    @property
    def layout(self) -> Layout:
        """The arrangement of trajectories in the workers; see `Worker.layout`."""
        return self._setup.workers.factory.layout

    @property
    def fingerprints(self) -> list[str]:
        """Fingerprints of all known workers; see `TrajectoryBatch`."""
        return self._life.fingerprints.bits

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise missing_attribute(self, name, _TODAYS)

    @overload
    def obtain_samples(
        self, num_samples: int, agent_update: Any = None, env_update: Envs | None = None,
        progress: ProgressArgument = False, *, reset_options: Options | None = None,
        tasks: Sequence[Any] | None = None, count: StepCount = "env_steps",
    ) -> TrajectoryBatch[ObservationsT, ActionsT]: ...  # fmt: skip
    @overload
    def obtain_samples(
        self, itr: int, num_samples: int, agent_update: Any = None, env_update: Envs | None = None,
        progress: ProgressArgument = False, *, reset_options: Options | None = None,
        tasks: Sequence[Any] | None = None, count: StepCount = "env_steps",
    ) -> TrajectoryBatch[ObservationsT, ActionsT]: ...  # fmt: skip
    @_with_itr
    @suggesting()
    def obtain_samples(
        self,
        num_samples: int,
        agent_update: Any = None,
        env_update: Envs | None = None,
        progress: ProgressArgument = False,
        *,
        reset_options: Options | None = None,
        tasks: Sequence[Any] | None = None,
        count: StepCount = "env_steps",
    ) -> TrajectoryBatch[ObservationsT, ActionsT]:
        """Return the shortest prefix of trajectories 0, 1, 2, … with at least `num_samples` timesteps.

        garage's `obtain_samples(itr, num_samples, agent_update, env_update)` works, too; the iteration number `itr` has
        no effect.

        Args:
            num_samples: Timesteps, at least 1.
            agent_update: None changes nothing; a tuple, dict or array is passed to the agent's `set_param_values` (an
                adapter's agent also accepts its library's objects: a module, a state dict, a model); an agent or a
                function replaces the agent. `PerWorker([...])`, or a list of agents, has an item for each worker.
            env_update: None changes nothing; an environment (in any form accepted by `envs`) replaces the old one; an
                `EnvUpdate` is applied to it. A list or `PerWorker` has an item for each worker.
            progress: True shows a progress bar on a terminal's stderr or in a notebook; elsewhere, or if the variable
                `CI` is set, it writes a line every 30 seconds and at the end. A callable receives a `progress.Snapshot`
                several times a second.
            reset_options: A dict for `env.reset(options=…)` in each trajectory of this call.
            tasks: Tasks assigned to trajectories in turn, starting with the first task at index 0. See
                `obtain_trajectories` for their form.
            count: The unit of `num_samples` in environments of several agents: "env_steps", or "agent_steps" for the
                sum over all agents.

        Raises:
            UsageError: `num_samples` is not a positive integer, the agent does not accept this `agent_update`, the
                number of items differs from the number of workers, or `reset_options` is not a dict (a ValueError).
            TypeError: `env_update` is not an environment.
            SerializationError: An update, or the options, cannot be pickled.
            RolloutError: User code raised in a worker.
            WorkerDiedError: A worker died, and the losses exceed `max_restarts`.
            WorkerHungError: A worker made no progress, and the losses exceed `max_restarts`.
            ClosedError: The sampler is closed.
            ConcurrentCallError: Another call is under way.
        """
        if agent_update is not None:
            refuse_two_numbers("obtain_samples", "num_samples", num_samples, agent_update)
        if count not in get_args(StepCount):
            raise UsageError(f"count must be one of {', '.join(map(repr, get_args(StepCount)))}, not {count!r}")
        plan = AtLeast(positive("num_samples", num_samples), counts_agents=count == "agent_steps")
        is_plain = reset_options is None and tasks is None
        resets = None if is_plain else tasks_in_turn(tasks, common_resets(reset_options))
        return self._obtain(plan, agent_update, env_update, progress, resets)

    def obtain_trajectories(
        self,
        n_trajectories: int | None = None,
        agent_update: Any = None,
        env_update: Envs | None = None,
        progress: ProgressArgument = False,
        *,
        seeds: Iterable[int] | None = None,
        reset_options: ResetOptions | None = None,
        tasks: Sequence[Any] | None = None,
    ) -> TrajectoryBatch[ObservationsT, ActionsT]:
        """Return exactly `n_trajectories` trajectories.

        Args:
            n_trajectories: Number of trajectories, at least 1; optional with `seeds`.
            agent_update: See `obtain_samples`.
            env_update: See `obtain_samples`.
            progress: See `obtain_samples`.
            seeds: Non-negative integers, in order: the seed of each trajectory, whatever the sampler's own seed and
                `order`. Samplers given the same seeds run the same trajectories; `batch.seeds` has them. None for the
                sampler's own; see `seeds`. Dropped trajectories (`on_failure="drop"`) are not replaced.
            reset_options: The value for `env.reset(options=…)`: a dict for all trajectories, or a list with a dict or
                None for each; with a list, dropped trajectories are not replaced. A native vector environment accepts
                a single dict only.
            tasks: Runs `n_trajectories` of each of these tasks: the k-th trajectory of task j has index
                `j * n_trajectories + k`, on any number of workers, and `batch.episode_infos["task_index"]` is j. A task
                is an argument for the environment's `set_task` before the reset, or all are `SetParameters` of the same
                names, without an environment; they hold for this call only. A dropped trajectory (see `drop_if` and
                `on_failure`) is replaced by the next of the same task, with an index higher by the number of all
                trajectories. The batch is ordered by task.

        Raises:
            UsageError: The numbers of trajectories, seeds and options disagree, or an argument is invalid. For the
                other errors see `obtain_samples`.
        """
        refuse_two_numbers("obtain_trajectories", "n_trajectories", n_trajectories, agent_update)
        n, resets = given_resets(n_trajectories, seeds, reset_options, tasks)
        plan = Exactly(n, **self._places(resets))
        batch = self._obtain(plan, agent_update, env_update, progress, resets)
        return batch if plan.n_of_task is None else by_task(batch)

    def obtain_exact_trajectories(
        self,
        n_traj_per_worker: int,
        agent_update: Any = None,
        env_update: Envs | None = None,
        progress: ProgressArgument = False,
        *,
        reset_options: Options | None = None,
    ) -> TrajectoryBatch[ObservationsT, ActionsT]:
        """Return exactly `n_traj_per_worker` trajectories for each worker, in worker order.

        Worker w's k-th trajectory has index `w * n_traj_per_worker + k`. See `obtain_samples` for the other arguments
        and errors.
        """
        refuse_two_numbers("obtain_exact_trajectories", "n_traj_per_worker", n_traj_per_worker, agent_update)
        plan = ExactlyPerWorker(positive("n_traj_per_worker", n_traj_per_worker), self.n_workers)
        return self._obtain(plan, agent_update, env_update, progress, common_resets(reset_options))

    def warm_up(self, n_timesteps: int, progress: ProgressArgument = False) -> None:
        """Sample at least `n_timesteps` with the current agent, for the statistics of the filters alone.

        Advances the agent version, as other calls do.

        Args:
            n_timesteps: Timesteps, at least 1.
            progress: See `obtain_samples`.

        Raises:
            UsageError: The sampler has no filter, or `n_timesteps` is not a positive integer. For other errors see
                `obtain_samples`.
        """
        if not self.filters:
            raise UsageError(
                "warm_up updates statistics of filters, but this sampler has no filter: pass observation_filter or "
                "reward_filter"
            )
        self._obtain(AtLeast(positive("n_timesteps", n_timesteps)), None, None, progress, None)

    def _obtain(
        self, plan: GatherPlan, agent_update: Any, env_update: Any, progress: ProgressArgument, resets: Resets | None
    ) -> TrajectoryBatch[ObservationsT, ActionsT]:
        changes = agent_update is not None or env_update is not None or resets is not None
        updates = self._updates_of(agent_update, env_update, resets) if changes else {}
        life = self._life
        batch: TrajectoryBatch[ObservationsT, ActionsT] | None = None
        try:
            with (
                life.call(plan, updates, resets) as call,
                display(progress, *plan.goal, note=functools.partial(self._note, call)) as shown,
            ):
                while not call.gathering.result.complete:
                    call.pump(shown.interval)
                    shown.update(call.so_far, complete=call.gathering.result.complete)
                batch = call.complete()
        except BaseException as error:
            if is_interrupt(error):
                life.salvaged = batch or life.salvaged
                if life.salvaged is not None:
                    error.add_note(f"salvage() returns all finished trajectories: {life.salvaged.n_trajectories:,}")
            raise
        return batch

    def _note(self, call: Call) -> str:
        """Return the progress display's remark, such as the number of trajectories in flight."""
        notes = [call.batches.note()]
        if self._setup.workers.factory.worker_class.waits:
            notes.append(f"{call.gathering.n_in_flight:,} in flight")
        return ", ".join(filter(None, notes))

    def _updates_of(self, agent_update: Any, env_update: Any, resets: Resets | None) -> dict[Kind, Any]:
        life, setup = self._life, self._setup
        life.check_usable()
        worker_class = setup.workers.factory.worker_class
        if resets is not None and resets.changes_resets and not worker_class.can_take_options:
            what = "reset_options" if resets.tasks is None else "tasks"
            raise UsageError(f"{worker_class.__name__} does not support {what}: use another worker_class")
        if agent_update is None and env_update is None:
            return {}
        refuse_calls(setup.tasks, "an update")
        if setup.holds_agent:
            refuse_items(agent_update, env_update)
        in_force = life.session.store.latest
        env_update = on_environments(env_update, in_force, life.session.engine)
        updates = pickled_updates(agent_update, env_update, in_force, held=setup.holds_agent)
        if "agent" in updates:
            environments = facts_in(updates["env"]) if "env" in updates else in_force.about("env")
            refuse_agents(facts_in(updates["agent"]), environments, worker_class)
        if "env" in updates:
            check_side_by_side(updates["env"], "env_update", setup.workers.factory)
        if makes_environment(env_update):
            life.session.scheduler.renew_checks()
        return updates

    def stream(
        self,
        agent_update: Any = None,
        env_update: Envs | None = None,
        *,
        first_trajectory: int = 0,
        n_trajectories: int | None = None,
        seeds: Iterable[int] | None = None,
        reset_options: ResetOptions | None = None,
        tasks: Sequence[Any] | None = None,
        kept_before: int = 0,
    ) -> Stream[ObservationsT, ActionsT]:
        """Return an iterator over trajectories 0, 1, 2, …, each a batch of size 1, without end by default.

        Workers run ahead of the consumer by a bounded number of trajectories. Leaving the loop stops them; so does
        another obtaining call, after which the iterator raises `SamplerError`.

        Args:
            agent_update: See `obtain_samples`.
            env_update: See `obtain_samples`.
            first_trajectory: The first index; from it on, trajectories are the same as in a stream from 0.
            n_trajectories: Number of trajectories from `first_trajectory` on; None for all with a seed or options in
                the lists given, otherwise for no end.
            seeds: See `obtain_trajectories`; the list starts with trajectory 0, whatever `first_trajectory`.
            reset_options: See `obtain_trajectories`; a list starts with trajectory 0, too.
            tasks: See `obtain_trajectories`: the same trajectories are returned, so `n_trajectories` is the number for
                each task. Replacements of dropped trajectories come last.
            kept_before: Number of trajectories returned by an earlier stream, before `first_trajectory`; with
                `on_failure="drop"` they count against the error for failures of nearly all trajectories.

        Raises:
            UsageError: `first_trajectory` is negative, or within a block of trajectories that are run together; the
                trajectories do not exist; or numbers disagree. For the others see `obtain_samples`.
        """
        self.refuse_prefetching("a stream")
        life = self._life
        first = positive("first_trajectory", first_trajectory, least=0)
        check_first(first, self.layout.block, differ=life.session.store.latest.differ)
        n, resets = streamed_resets(first, n_trajectories, seeds, reset_options, tasks)
        kept_before = positive("kept_before", kept_before, least=0)
        plan = Streamed(first, n, **self._places(resets), kept_before=kept_before)
        if plan.n_of_task is not None and first:
            raise UsageError(
                f"first_trajectory must be 0, got {first}, for tasks with dropped trajectories, because the number "
                "dropped before is unknown for each task. Pass a seed for each trajectory (seeds=[…]): then dropped "
                "trajectories are not replaced"
            )
        updates = self._updates_of(agent_update, env_update, resets)

        def begin() -> Call:
            return self._life.begin_stream(plan, updates, resets)  # through `self`: a stream keeps its sampler

        return Stream(begin, life)

    def task_stream(
        self, runs: Sequence[TaskRun], *, seeds: Iterable[int] | None = None, reset_options: ResetOptions | None = None
    ) -> TaskStream:
        """Return an iterator over trajectories of several tasks; for samplers made with `PerTask`.

        Workers start the next run during the last trajectories of the current run. Each trajectory equals that of the
        first call of a sampler with this seed and this task alone.

        Args:
            runs: Ranges of trajectories by task, in this order.
            seeds: See `stream`; the seeds of trajectories 0, 1, 2, … of every task.
            reset_options: See `stream`; likewise.

        Raises:
            UsageError: The sampler has a single task; a run does not exist, or starts or ends within a block of
                trajectories that are run together; or trajectories lack a seed or options.
        """
        life, tasks = self._life, self._setup.tasks
        if not tasks:
            raise UsageError("task_stream needs a sampler made with envs=PerTask([…])")
        names = [task.name for task in tasks]
        checks = life.checks
        to_check = {name.number for name in names if isinstance(checks, TaskChecks) and checks.is_due(name.number)}
        is_fixed = seeds is not None or (reset_options is not None and not isinstance(reset_options, Mapping))
        whole = self._setup.policy.drops and not is_fixed
        sections = sections_of(runs, names, self.layout.block, to_check, whole=whole)
        resets = resets_of(sections, seeds, reset_options)
        self._updates_of(None, None, resets)
        plan = Streamed(limit=sections[-1].stop, fixed=True, sections=sections)

        def begin() -> Call:
            return self._life.begin_stream(plan, {}, resets)  # through `self`: a stream keeps its sampler

        return TaskStream(begin, life, sections)

    @property
    def tasks(self) -> tuple[TaskFacts, ...]:
        """The tasks of a sampler made with `PerTask`; empty for others."""
        return self._setup.tasks

    def writable_infos(self, infos: InfosArgument = True) -> AbstractContextManager[None]:
        """Return a context in which calls return only trajectories with infos that a file can hold.

        Within it, other infos are removed on arrival, and a call ends with the first trajectory whose info no file can
        hold, instead of failing at the end.

        Args:
            infos: True for all infos, False for none, or the names to write.

        Raises:
            UsageError: `infos` is something else. Calls raise `UnwritableInfoError`.
        """
        return self._life.file_infos.entered(InfoSelection.of(infos))

    def salvage(self) -> TrajectoryBatch[ObservationsT, ActionsT] | None:
        """Return, once, the finished prefix of the call interrupted by Ctrl-C, or None."""
        salvaged, self._life.salvaged = self._life.salvaged, None
        return salvaged

    def provenance(self, task: int | None = None) -> dict[str, Any]:
        """Return the facts that determine the next call's trajectories besides the seed, in JSON's types.

        For `batch.save(…, provenance=…)`: the environment's name and arguments, limits, threads, the workers' class and
        arguments, the agent version, `record_taken`, the number of workers (if it matters), and versions of packages;
        filters with a digest of their statistics; and, after a call, the workers' fingerprints (see `TrajectoryBatch`).
        Worker class, agent version and `record_taken` are left out if default. Agents and code are not described.

        Args:
            task: The number of a task, in a sampler of several: returns this task's facts.

        Raises:
            UsageError: The sampler has several tasks, and `task` is None; or the task does not exist.
        """
        life, setup = self._life, self._setup
        life.check_usable()
        if task is not None:
            return self._provenance_of_task(positive("task", task, least=0))
        refuse_calls(setup.tasks, "provenance() without a task")
        store, version, schedule = life.session.store, self.agent_version + 1, {}
        if life.off_by_one is not None:
            (version, first), schedule = life.off_by_one.next_of(self.agent_version), {"staleness": 1}
            schedule |= {"first_trajectory": first} if first else {}
        facts = provenance_of(
            setup.workers, setup.policy, setup.order, store.latest, version=version,
            fingerprints=life.fingerprints.bits, need=store.need,
        )  # fmt: skip
        return facts | schedule | self.filters.facts()

    def _provenance_of_task(self, number: int) -> dict[str, Any]:
        life, setup = self._life, self._setup
        if number >= len(setup.tasks):
            raise UsageError(f"task {number} does not exist: this sampler has tasks 0 to {len(setup.tasks) - 1}")
        facts = provenance_of(
            setup.workers, setup.policy, setup.order, setup.tasks[number].updates, version=1,
            fingerprints=sorted(life.fingerprints_of_tasks.get(number, ())),
            need=functools.partial(life.session.store.task_needs, number),
        )  # fmt: skip
        return facts | self.filters.facts()
