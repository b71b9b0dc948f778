"""One agent in the sampler's own process, for all workers: `MultiprocessingSampler(…, inference="parent")`.

For agents that are large, sit on an accelerator or are a service. Environments live in `n_workers` processes, several
in each, and step at the same time; the agent is asked here for the actions of all of them, with `get_actions`.

```python
from streamsampler import MultiprocessingSampler, RandomAgent

with MultiprocessingSampler(
    RandomAgent(), "CartPole-v1", n_workers=2, inference="parent", worker_args={"n_envs": 16}, seed=1
) as sampler:
    batch = sampler.obtain_samples(1000)
```

Calls, batches and errors are those of one `VecWorker` with as many environments, `n_envs` (see
`streamsampler.workers.vec`), bit for bit, whatever the number of processes. Trajectory i always runs in row i mod
`n_envs` of the agent's batches, which always have `n_envs` rows.

*The agent* is the one that you pass, and no copy: what you train in it is in force in the next call, and
`agent_update=` is for parameters that lie elsewhere. It need not be picklable, unless the sampler is pickled, or the
agent has a `reset` and no `get_actions`: then each row but the first has a copy, which only `agent_update=` reaches.
Two samplers with one agent share it: what one of them updates, the other has. The module of a `TorchAgent` is in
evaluation mode in calls, as in workers, and between them in the mode that you left it in.

A `sampler.replay` asks a copy of the agent as it is now, so that nothing changes in yours.

*Slow environments.* An agent that says `row_independent = True`, and remembers nothing from step to step, is asked when
all rows are ready; or, when half of them are, after as long as one call of it takes. Others wait for all rows.

*Groups.* With `worker_args={"n_envs": 16, "groups": 2}` such an agent is asked for one half of each process's rows
while environments of the other half step. Batches are the same, because each call still has `n_envs` rows. So the agent
is called twice as often, which pays only where a call takes less time than the steps of half the environments, and a
core is free for it. The default is 1, which was the faster one with two processes on two cores.

*Fragments.* `obtain_fragments(n_timesteps, n_envs)` takes the first `n_envs` of these environments, by default all.
Where the agent is asked for rows that are ready, each is at its own pace within a fragment; others take each timestep
together. An environment whose process is lost is restored in the middle of a fragment. Where that cannot be, because it
does something else then or its episode is too long, the fragment is run again: all episodes are taken back to where
they stood before it, and in those that cannot be a new one begins, with a warning.

*Losses.* A process that dies, or hangs for longer than `step_timeout`, is started again, and its environments go on
where they were: they are reset with their seeds, and their actions are applied again. What comes of the last one is
compared with what it was. The quotas are those of all samplers. Where an environment does something else then, a
warning says so, and the trajectories under way are run again from their seeds.

*Hooks* and `drop_if` are called here, for each row. They have no `TrajectoryContext.env` and no
`TrajectoryContext.reset`: what they need to know of an environment it says in its infos. With hooks all rows take each
timestep together.

*Masks of actions* are those of observations and infos (see `streamsampler.agents`). What an environment has by its
method `action_masks` alone is an error, because it cannot be called from here.

*Limits.* Environments draw from `self.np_random` alone: what draws from a global generator is an error, because several
share a process. Spaces are of arrays, nested or not. There are no vector environments, and no agents or environments
for each worker; `stats.workers[0]` is this process, and what environments time themselves with `timed` is not in it.
These are refused, and what needs them uses `inference="worker"` (with `worker_class=VecWorker` for batched calls):

| refused | because |
|---|---|
| `staleness=1` | the agent acts only while you call the sampler, so nothing is sampled between calls |
| `on_failure="drop"` | as in `VecWorker`, trajectories run side by side, and one alone cannot be left out |
| `order="arrival"` | it is one worker, which returns trajectories in the order of their indices |
| `limits.max_worker_memory` | trajectories go on in a process from ticket to ticket |
"""
