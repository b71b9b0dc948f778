"""What all samplers obtain besides whole trajectories: fragments of episodes that go on from call to call."""

from __future__ import annotations

import numbers
from typing import Any, Generic

from streamsampler.data.batch import TrajectoryBatch
from streamsampler.data.generics import ActionsT, ObservationsT
from streamsampler.errors import UsageError, positive
from streamsampler.samplers.obtaining import ObtainingSampler
from streamsampler.samplers.per_worker import Envs, items_by_worker
from streamsampler.samplers.progress import ProgressArgument
from streamsampler.scheduling.plans import Fragments
from streamsampler.workers.resets import Options, common_resets
from streamsampler.workers.seams import WorkerWithSeams

__all__ = ["FragmentingSampler"]

_N_ENVS = 8


class FragmentingSampler(ObtainingSampler[ObservationsT, ActionsT], Generic[ObservationsT, ActionsT]):
    """The call of all samplers that returns fragments."""

    _n_envs: int | None = None

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

        Whole trajectories in between, an `env_update`, other `n_envs`, an exception or pickling the sampler end the
        episodes: the next call begins with fresh environments. With `on_failure="drop"` fragments are an error, since
        no other episode takes the place of one that raises: what it had would be missing in the grid.

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
            restore_limit: Timesteps, at least 0: of longer episodes the actions are not kept, and after a loss a new
                episode begins there, with a warning.

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
        self._check_usable()
        n_workers = self._session.engine.n_workers
        n_envs = self._usual_envs if n_envs is None else positive("n_envs", n_envs)
        limit = positive("restore_limit", restore_limit, least=0)
        self._check_fragments(n_envs, agent_update, env_update)
        side_by_side = self._setup.factory.worker_class.continues_side_by_side
        if any(traits.of_policies is not None for traits in self._session.updates.about("agent")):
            raise UsageError("fragments cannot be had of environments of several agents yet: sample whole trajectories")
        plan = Fragments(
            n_timesteps, n_envs, n_workers, self.layout.rows, side_by_side=side_by_side, restore_limit=limit
        )
        batch = self._obtain(plan, agent_update, env_update, progress, common_resets(reset_options))
        self._n_envs = n_envs
        return batch

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "n_envs": self._n_envs}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._n_envs = state["n_envs"]
        super().__setstate__(state)

    def refuse_lag(self, what: str) -> None:
        """Refuse what a sampler with `staleness=1` cannot do.

        Args:
            what: What it is, such as "a stream".

        Raises:
            UsageError: The sampler has `staleness=1`.
        """
        if self._lag is not None:
            self._lag.refuse(what)

    @property
    def _usual_envs(self) -> int:
        """How many environments there are where a call does not say it: no matter how many workers there are."""
        if self._n_envs is not None:
            return self._n_envs
        return self._most_envs or max(_N_ENVS, self.layout.rows)

    @property
    def _most_envs(self) -> int | None:
        """How many environments there can be for fragments; None for any number."""
        return None

    def _check_fragments(self, n_envs: int, *updates: Any) -> None:
        self.refuse_lag("fragments")
        if (most := self._most_envs) is not None and n_envs > most:
            raise UsageError(
                f'obtain_fragments of {n_envs} environments: with inference="parent" there are {most}; pass '
                f'worker_args={{"n_envs": {n_envs}}} to the sampler for more'
            )
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
