"""What all samplers obtain besides whole trajectories: fragments of episodes that go on from call to call."""

from __future__ import annotations

from typing import Any, Generic

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.generics import ActionsT, ObservationsT
from streamsampler.errors import UsageError, positive, refuse_two_numbers
from streamsampler.samplers.obtaining import ObtainingSampler
from streamsampler.samplers.per_worker import items_by_worker
from streamsampler.samplers.progress import ProgressArgument
from streamsampler.scheduling.plans import Fragments
from streamsampler.workers.seams import WorkerWithSeams

__all__ = ["FragmentingSampler"]


class FragmentingSampler(ObtainingSampler[ObservationsT, ActionsT], Generic[ObservationsT, ActionsT]):
    """The call of all samplers that returns fragments."""

    _n_envs: int | None = None

    def obtain_fragments(
        self,
        n_timesteps: int,
        n_envs: int | None = None,
        agent_update: Any = None,
        env_update: Any = None,
        progress: ProgressArgument = False,
    ) -> TrajectoryBatch[ObservationsT, ActionsT]:
        """Return exactly `n_timesteps` timesteps of each of `n_envs` environments, whose episodes go on afterwards.

        An environment is reset only where an episode ends, or with an `env_update`. The batch's trajectories are the
        parts of episodes, in order of environment, then time: `batch.continued` says which began in an earlier call,
        `batch.cut` which go on in the next one (they are neither terminated nor truncated, and `last_observations` is
        what to bootstrap from), and `batch.as_grid("rewards")` is of (n_timesteps, n_envs).

        Episode k of environment e has index `e + k * n_envs`, and the seed of that trajectory of the version in which
        the environments began. So an environment's episodes are a function of the sampler's seed, of e, and of what
        each call was given, whatever the number of workers. With a worker that is lost go its episodes: they are
        restored by applying their actions again, and what was lost is run again. That needs an agent without a `reset`,
        or with `get_state()` and `set_state(state)`, and an environment that does not draw from global generators;
        otherwise a new episode begins there, with a warning. Whole trajectories in between, an `env_update`, other
        `n_envs`, an exception or pickling the sampler end the episodes: the next call begins with fresh environments.

        Args:
            n_timesteps: Timesteps of each environment, at least 1.
            n_envs: How many environments all workers have together, at least 1: worker w has those whose number is w
                modulo the number of workers. None for as many as in the last call; at first one for each worker. With
                `VecWorker`, whose own `n_envs` step side by side, groups of so many belong to the workers in turn: a
                group is the same on any number of workers.
            agent_update: See `obtain_samples`. An agent that is replaced in the middle of an episode is reset.
            env_update: See `obtain_samples`.
            progress: See `obtain_samples`.

        Raises:
            UsageError: A number is no positive integer; the sampler has `order="arrival"`, `on_failure="drop"`, a kind
                of worker that runs no fragments, or agents or environments of their own for its workers. For the other
                errors see `obtain_samples`.
        """
        refuse_two_numbers("obtain_fragments", "n_timesteps", n_timesteps, agent_update)
        n_timesteps = positive("n_timesteps", n_timesteps)
        if n_envs is None:
            n_envs = self._n_envs or self.n_workers * self.layout.rows
        n_envs = positive("n_envs", n_envs)
        self._check_fragments(agent_update, env_update)
        plan = Fragments(n_timesteps, n_envs, self.n_workers, self.layout.rows)
        batch = self._obtain(plan, agent_update, env_update, progress, None)
        self._n_envs = n_envs
        return batch

    def _check_fragments(self, *updates: Any) -> None:
        self._check_usable()
        if self._order != "index":
            raise UsageError('fragments need order="index": each environment has its place in the batch')
        kind = self._setup.factory.worker_class
        if self._setup.hooks is not None or (issubclass(kind, WorkerWithSeams) and kind.overrides_seams()):
            raise UsageError(
                "fragments take no hooks, no drop_if and no worker class that overrides begin_trajectory, before_step, "
                "after_step or end_trajectory: use obtain_samples or obtain_trajectories"
            )
        if self._policy.on_failure == "drop":
            raise UsageError(
                'fragments need on_failure="raise": where an episode raises, no other one takes its place in the batch'
            )
        worker_class = self._setup.factory.worker_class
        if not worker_class.can_continue:
            raise UsageError(f"{worker_class.__name__} runs no fragments: use DefaultWorker, or obtain_trajectories")
        if self._session.updates.differ or any(items_by_worker(update) is not None for update in updates):
            raise UsageError(
                "fragments need one agent and one environment for all workers: an environment's episodes are the same "
                "whatever the number of workers"
            )
