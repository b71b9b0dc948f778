"""Check and pickle a sampler's first agents and environments, of a single task or of several."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from streamsampler.agents.filters import Filters
from streamsampler.agents.policies import PolicyOf
from streamsampler.agents.updates import AgentTraits
from streamsampler.core.errors import SamplerError, UsageError
from streamsampler.core.serialization import Payload
from streamsampler.core.words import count
from streamsampler.environments.updates import as_env_update
from streamsampler.protocol.task_sections import TaskName
from streamsampler.samplers.options import check_policies, policies_of, refuse_agents, say_size_of_copies
from streamsampler.samplers.payloads import are_asynchronous, check_side_by_side, pickled_environments, put, put_agents
from streamsampler.samplers.per_task import PerTask
from streamsampler.samplers.per_worker import items_by_worker
from streamsampler.samplers.provenance import EnvironmentFacts
from streamsampler.samplers.task_payloads import TaskPayloads, first_payload
from streamsampler.samplers.updates import Updates
from streamsampler.workers.base import Worker
from streamsampler.workers.factory import WorkerFactory


@dataclass(frozen=True)
class TaskFacts:
    """The known facts about a task."""

    name: TaskName
    agent: AgentTraits
    environment: EnvironmentFacts
    policy_names: tuple[str, ...]  # empty with a single agent

    @property
    def updates(self) -> Updates[Any]:
        """The facts, in the form of updates of a sampler of this task alone."""
        updates: Updates[Any] = Updates(1)
        updates.put("agent", (), self.agent)
        updates.put("env", (), self.environment)
        return updates


@dataclass(frozen=True)
class CheckedUpdates:
    """A sampler's first agents and environments, checked and pickled."""

    updates: Updates[Payload]
    factory: WorkerFactory  # makes workers that can run them
    policy_names: tuple[str, ...]  # empty with a single agent
    tasks: tuple[TaskFacts, ...] = ()  # empty with a single task


@dataclass
class UpdatesChecker:
    """The sampler's other arguments, which its agents and environments must fit."""

    factory: WorkerFactory
    worker_class: type[Worker]
    filters: Filters
    policy_of: PolicyOf | None
    env_kwargs: Mapping[str, Any] | None
    holds_agent: bool  # whether the agent stays in this process, unpickled
    _pickled: dict[int, Payload] = field(default_factory=dict)  # the tasks' agents, by identity

    def given(self, agents: Any, envs: Any) -> CheckedUpdates:
        """Check and pickle agents and environments for all workers, each worker, or each task; errors name the task."""
        if isinstance(agents, PerTask) or isinstance(envs, PerTask):
            return self._of_tasks(agents, envs)
        factory, given = self.factory, agents
        agents = policies_of(agents, self.policy_of)
        policy_names = check_policies(agents, self.worker_class, self.filters)
        as_env = partial(as_env_update, env_kwargs=self.env_kwargs)
        environments = pickled_environments(envs, factory.n_workers, "envs", "the environment", as_env)
        updates: Updates[Payload] = Updates(factory.n_workers)
        if (payload := self._pickled.get(id(given))) is not None:
            put(updates, "agent", payload)
        else:
            put_agents(updates, agents, factory.n_workers, held=self.holds_agent)
        env_waits = are_asynchronous(environments)
        if env_waits or any(each.waits for each in updates.about("agent")):
            factory = factory.for_asynchronous(env=env_waits)
        check_side_by_side(environments, "envs", factory)
        put(updates, "env", environments)
        refuse_agents(updates.about("agent"), updates.about("env"), factory.worker_class)
        if factory.worker_class.waits:
            say_size_of_copies(updates.of_workers("agent"), factory.layout.rows)
        return CheckedUpdates(updates, factory, policy_names)

    def _of_tasks(self, agents: Any, envs: Any) -> CheckedUpdates:
        if not isinstance(envs, PerTask):
            raise UsageError("agents is PerTask, but envs is not: each task needs its own environment")
        if isinstance(agents, PerTask) and agents.names != envs.names:
            raise UsageError(f"agents and envs have different tasks: {agents.names} and {envs.names}")
        of_tasks: list[CheckedUpdates] = []
        facts: list[TaskFacts] = []
        for task in envs.tasks:
            agent = agents[task.number] if isinstance(agents, PerTask) else agents
            with naming(task):
                given = self._of_task(agent, envs[task.number])
            self._pickled[id(agent)] = first_payload(given.updates.of_workers("agent"))
            of_tasks.append(given)
            about = given.updates.about("agent")[0], given.updates.about("env")[0]
            facts.append(TaskFacts(task, *about, given.policy_names))
        updates: Updates[Any] = Updates(self.factory.n_workers)
        updates.put("tasks", TaskPayloads.of([given.updates for given in of_tasks], envs.open_envs))
        names = tuple(sorted({name for given in of_tasks for name in given.policy_names}))
        return CheckedUpdates(updates, _common_factory(facts, of_tasks), names, tuple(facts))

    def _of_task(self, agent: Any, env: Any) -> CheckedUpdates:
        for what, given in (("agent", agent), ("environment", env)):
            if items_by_worker(given) is not None:
                raise UsageError(f"a task needs one {what} for all workers, got one for each: evaluate it by itself")
        return self.given(agent, env)


def _common_factory(tasks: Sequence[TaskFacts], of_tasks: Sequence[CheckedUpdates]) -> WorkerFactory:
    first = of_tasks[0].factory
    for task, given in zip(tasks, of_tasks, strict=True):
        if given.factory.worker_class is not first.worker_class:
            kinds = [each.worker_class.__name__ for each in (first, given.factory)]
            raise UsageError(
                f"{tasks[0].name} needs {kinds[0]} and {task.name} needs {kinds[1]}, because only one of them waits "
                "(async def): pass worker_args={…} for a kind that runs both, or evaluate them separately"
            )
    return first


@contextmanager
def naming(task: TaskName) -> Iterator[None]:
    try:
        yield
    except (SamplerError, TypeError) as error:
        error.args = (f"{task}: {error}", *error.args[1:])
        raise


def refuse_calls(tasks: Sequence[TaskFacts], what: str = "this call") -> None:
    if tasks:
        raise UsageError(f"{what} needs a sampler of one task, but this one has {count(len(tasks), 'task')}")
