"""Samplers: how to ask for trajectories, and what happens when something fails.

This page is the guide. `streamsampler.Sampler` documents each argument and each call.

Calls
-----

| call | returns |
|---|---|
| `obtain_samples(n)` | the shortest prefix of trajectories 0, 1, 2, … with at least n timesteps |
| `obtain_trajectories(n)` | exactly n trajectories |
| `obtain_exact_trajectories(n)` | exactly n trajectories for each worker, in worker order |
| `obtain_fragments(t, n)` | exactly t timesteps of each of n environments, whose episodes go on in the next call |
| `stream()` | trajectories 0, 1, 2, … one by one, without end or n of them; leaving the loop stops the workers |

Each call takes `agent_update` and `env_update`; `streamsampler.PerWorker` holds one item for each worker. Each call
increases the agent version by one. A rollout of an older version is abandoned within one environment step, so no
returned timestep was produced by older parameters:

```python
for iteration in range(100):
    batch = sampler.obtain_samples(5_000, agent_update=parameters)  # goes to agent.set_param_values
    parameters = improve(parameters, batch)
```

`obtain_samples` returns what one process alone would have sampled. Taking whatever finishes first over-represents short
trajectories; `order="arrival"` does that.

`progress=True` shows a bar on a terminal, and in a notebook where tqdm and ipywidgets are installed. Elsewhere, and
where the variable `CI` is set, it writes a line every 30 seconds and one at the end.

`streamsampler.LocalSampler` runs its workers in the calling process: the same batches, for debugging and small jobs.

Fragments
---------

PPO and similar algorithms learn from a fixed number of timesteps of each of several environments, wherever the episodes
stand. `obtain_fragments` returns them; the next call goes on from there, with other parameters if you like:

```python
with MultiprocessingSampler("random", "CartPole-v1", n_workers=2, seed=1) as sampler:
    for iteration in range(3):
        batch = sampler.obtain_fragments(128, n_envs=16)
        rewards = batch.as_grid("rewards")  # (128, 16): a row for each timestep, a column for each environment
        print(rewards.shape, batch.episode_returns.mean(), "mean return of the episodes that ended")
```

The batch's trajectories are parts of episodes, in order of environment, then time:

| property | what it says |
|---|---|
| `batch.continued`, (N,) | which parts began in an earlier call |
| `batch.cut`, (N,) | which go on in the next call, neither terminated nor truncated: see `last_observations` |
| `batch.env_numbers`, (N,) | which environment each part is of |
| `batch.episode_starts`, (T,) | which timesteps are the first of an episode |
| `batch.returns`, `batch.lengths`, (N,) | of parts |
| `batch.episode_returns`, `batch.episode_lengths`, (E,) | of the episodes that ended in this call, all parts included |

Bootstrap parts that were cut from their `last_observations`. `episode_returns` are of raw rewards, also where a filter
changes `rewards`, and empty after a call in which no episode ended. `batch.stats.episodes` and
`sampler.stats.episodes` add these episodes up, and progress shows their mean return.

Environments begin in the first call. They begin again after a call for whole trajectories, an evaluation included (the
log warns of that, once: use a second sampler for these), with an `env_update`, with another `n_envs` (the log warns of
that, too), and in a sampler that was pickled. Without `n_envs` there are 8 in the first
call, or `VecWorker`'s own number where that is more, and afterwards as many as in the last call: the number of workers
changes nothing. If a worker is lost, its episodes are restored by applying their actions again; see `obtain_fragments`
for what an agent needs for that.

One version behind
------------------

With `staleness=1` the batch of call c is made with the parameters that came with call c - 1: a fixed lag of one agent
version, which is in `batch.agent_versions`. So workers sample the next batch while you learn from the last one: an
iteration takes as long as the longer of the two, not as both together. Which trajectories a batch has follows from the
calls alone, and not from how long you learn:

| call | parameters that come with it | its batch |
|---|---|---|
| 1 | those of version 1 | of version 1, from trajectory 0 on |
| 2 | those of version 2 | of version 1, from the first trajectory on that is not in batch 1 |
| 3 | those of version 3 | of version 2, from trajectory 0 on |
| c | those of version c | of version c - 1, from trajectory 0 on |

A call with an `env_update` begins anew, as call 1 does: its batch is of the new environment, with the parameters that
came with it, and nothing of the old environment is returned any more. So does a call after one that raised.
`reset_options`, `seeds` and `tasks` are of the call that they are given to, whose batch has older parameters. An update
that an agent refuses is an error of the call after its own; that call's update is not kept, either. Where an
environment is refused, the updates of its call are not kept; those of calls before it are. Streams, fragments, filters,
`order="arrival"` and `inference="parent"` do not go together with `staleness=1`.

Between two calls each worker runs two tickets at most, which together have as much as the last call needed: no thread
runs in your process, and nothing is read before the next call, which also reports what has failed or died since. If
that call asks for more, the rest is sampled then; for less, what is left over is surplus. If it is given other
`reset_options`, or an `env_update`, what was begun is abandoned. After a call with `seeds` or `tasks` nothing is begun,
since the next call's are not known, nor by a `LocalSampler`, whose batches are the same. When its batch is complete, a
call waits at most .1 s for workers that still run a surplus timestep. A worker whose timestep lasts longer begins the
next batch in the next call, so with such environments little is gained.

Seeds and evaluation
--------------------

`sampler.seed` is the seed, given or drawn. `batch.seeds[i]` is one integer that everything random in trajectory i comes
from: `env.reset`, the agent's `reset(seed=…)`, and the generators of `random`, `numpy.random` and torch.
`env.reset(seed=batch.seeds[i])` starts the same trajectory in any script.

To evaluate, ask for an exact number of trajectories. With `seeds` they start from the given seeds, each once and in
order, so two agents can be compared on the same trajectories:

```python
seeds = range(1_000, 1_100)
before = sampler.obtain_trajectories(seeds=seeds, agent_update=parameters).returns
after = sampler.obtain_trajectories(seeds=seeds, agent_update=improve(parameters, batch)).returns
print((after - before).mean())
```

`sampler.seeds(version, indices)` returns the sampler's own seeds. `reset_options={…}` is passed to
`env.reset(options=…)` in every trajectory of a call; `obtain_trajectories` also takes a list with one item for each
trajectory.

Replaying a trajectory
----------------------

`Sampler.replay` runs one trajectory again in this process, compares it bit for bit with what was recorded, and says
where it differs first, if it does. It needs the agent version and the trajectory index, which a batch has:

```python
with MultiprocessingSampler("random", "CartPole-v1", n_workers=2, seed=1) as sampler:
    batch = sampler.obtain_samples(1_000)
    longest = int(batch.lengths.argmax())
    again = sampler.replay(sampler.agent_version, int(batch.indices[longest]), recorded=batch)
    print(again)  # trajectory 11 of agent version 1, …; the same as recorded, bit for bit
```

`video="it.mp4"` films it. After later calls pass `agent=`, the agent of that version; `actions=True` replays the
recorded actions without an agent. An episode of fragments that began in an earlier call is replayed with
`actions=True`, from a batch that has all its parts: `TrajectoryBatch.concatenate(batches)`. `streamsampler.replay` does
the same with a file.

What depends on more than the seed
----------------------------------

The same seed gives the same batch for any number of workers if neither the environment nor the agent carries state from
one trajectory to the next. `gymnasium.wrappers.NormalizeObservation`, `NormalizeReward` and Stable-Baselines3's
`EpisodicLifeEnv` do carry state. Samplers recognise such wrappers. They also check: in the first call worker 0 runs a
trajectory before and after another one and compares, for at most 0.2 seconds. A difference is logged as a warning that
names it and the remedy. With `check="error"` the whole check is run, and a difference raises
`streamsampler.NotReproducibleError`; `check=None` checks nothing. The remedy for normalisation: make its statistics
parameters of the agent, or freeze them (`update_running_mean=False` on the wrapper, `training=False` on
`VecNormalize`).

With a list of agents or environments, one for each worker, batches are reproducible for that number of workers only.

Settings of your process
------------------------

Some settings of a process change what environments and agents compute. Workers have those of your script, as they are
when a call begins: what you change between two calls holds from the next call on.

- Environment variables, the working directory, `sys.path` (not on a Ray cluster, whose machines have their own).
- NumPy's error state (`numpy.seterr`), the `decimal` context, `warnings` filters, the locale, the recursion limit.
- torch's default dtype, its precision of float32 products, and whether it uses deterministic algorithms.
- `jax_enable_x64`.

torch's default device is the CPU in workers, where agents and their modules are; a warning names another one of your
script's. `streamsampler.core.settings` has the list; a worker that cannot have a setting logs a warning.

The order of a set of strings depends on the process's hash seed. All workers have the number in `PYTHONHASHSEED`, or 0
where that is unset, so two runs, and 1 and 2 workers, give one batch. Your script's own process has another hash seed
unless you set `PYTHONHASHSEED=0` before it starts. `LocalSampler` and `start_method="fork"` run in that process, or in
copies of it: an environment that walks a set of strings gives other batches there.

Other processors
----------------

NumPy and torch have several kernels for the same operation and choose by the processor; the kernels round differently.
So the same seed gives the same trajectories on another machine only where the kernels round alike. Each worker computes
a small fixed network once and tells the digest of its bits, its fingerprint. Where workers disagree, which happens on
clusters of several kinds of machines, a warning names the workers, the machines and their digests; with
`fingerprint="error"` the call ends with a `streamsampler.NotReproducibleError`. `batch.fingerprints`, files written by
the command and folders of shards have the fingerprints; a folder that is resumed on another kind of machine says so.

For the same trajectories everywhere use machines of one kind, with the same versions of libraries. The number of
threads may change bits, too; it is no part of a fingerprint, but files record `worker_threads`. What environments and
GPUs compute is not in a fingerprint, nor are hash seeds: those of a `LocalSampler` and of forked workers are the
script's, all others are alike.

Exceptions in your code
-----------------------

An exception in an environment or an agent ends the call with a `streamsampler.RolloutError` that names the worker, what
it was doing, and the trajectory. The worker's own traceback is its cause:

```text
  File "robot.py", line 11, in step
    return self.t, 1.0 / (5 - self.t), False, False, {}
                   ~~~~^~~~~~~~~~~~~~
ZeroDivisionError: float division by zero

The above exception was the direct cause of the following exception:
…
streamsampler.errors.RolloutError: worker 0 failed while stepping the environment in trajectory 0 of agent version 1:
ZeroDivisionError: float division by zero
```

The sampler stays usable: in the next call that worker gets a new environment and the current agent.

Whether a call fails, and for which trajectory, depends on the seed alone. An exception is held back until all
trajectories before it have arrived. Then it is raised, or counted as surplus if the batch was complete without it. A
stream yields the trajectories before it, then raises. Where workers run blocks of trajectories, a block fails as a
whole. With `order="arrival"` an exception is raised when it arrives.

With `on_failure="drop"` a trajectory that raises is left out, its worker gets a new agent and environment, and the
batch is completed with the next indices. `stats.dropped` lists what was left out, and why. The batch is still the same
for any number of workers. Where failures depend on the state, what is left is biased. A call in which nearly everything
fails raises.

Ctrl-C in a call raises `KeyboardInterrupt`; `sampler.salvage()` then returns the finished prefix. So does what a signal
handler of yours raises, unless it is an `Exception`: in a `LocalSampler` that counts as the environment's.

Workers that die, hang or grow
------------------------------

A worker process may be killed by a signal, run out of memory or call `os._exit`. The sampler then starts another
process with the current agent and environment, and the dead worker's trajectories are run again from the same seeds.
The batch is bit-identical to that of an undisturbed run. `logging.getLogger("streamsampler")` logs a warning;
`stats.restarts` counts.

With `step_timeout=2.0` a worker that makes no progress for two seconds is killed and replaced the same way. This covers
resets, actions and timesteps, also in native code that holds the interpreter's lock. Its Python stacks are logged:

```text
worker 0 made no progress for 2 s while stepping the environment in trajectory 0 of agent version 1; a new one takes
its place
Current thread 0x00007fef83673b80 (most recent call first):
  File "robot.py", line 16 in step
```

Only time that the sampler spends waiting counts: not a learner that is busy between two trajectories of a stream, nor a
laptop that sleeps. An endless trajectory makes progress, so it is no hang; `max_episode_length` ends it.

| argument | what it limits | default |
|---|---|---|
| `max_restarts`, `limits.restart_window` | workers replaced within so many seconds | 10 in 60 s, up to 8 workers |
| `limits.max_lifetime_restarts` | workers replaced in all | 100, with up to 8 workers |
| `restart_on` | exception types that replace the worker instead of ending the call | none |
| `step_timeout` | seconds that a reset, an action or a timestep may take | no limit |
| `limits.construction_timeout` | seconds that making or updating them may take | 60 with a `step_timeout` |
| `limits.max_worker_memory` | bytes of private memory above which a worker is replaced between tickets | no limit |
| `limits.close_timeout` | seconds that all workers together may take to close their environments | 5 |

`None` removes a limit, but does not retry for ever what fails the same way each time: three equal losses are an error
then. These are losses of one trajectory by the same exception (its class, and the line that raised) or cause of death,
or of a worker that never became ready. What a signal from outside may have killed, such as SIGKILL, is tried ten times.
A number is obeyed as given. With more than 8 workers the defaults of the first two grow in proportion. One failure more
than the quota ends the call with a `streamsampler.WorkerDiedError`, a `streamsampler.WorkerHungError` or a
`streamsampler.RolloutError` that lists all of them with times; `error.incidents` has them as objects. The counts then
start from zero again, and the sampler stays usable. A failure counts when all trajectories before its own have arrived;
if the batch does not need that trajectory, the failure does not count.

A process that SIGKILL cannot end, for instance one stuck in a file system, is given up after 5 seconds. A fork server
that does not answer within two minutes is replaced. What is lost with it, or with a watchdog, while it starts counts as
one loss of a worker.

A slow worker does not hold up the batch: it gets smaller tickets and none near the end, and an idle worker re-runs its
remaining tickets. The first result is used; the other is counted as surplus.

What environments start
-----------------------

Environments are closed (`env.close`) when the sampler is closed, after an exception, after Ctrl-C, and after SIGTERM of
the command: within `limits.close_timeout`, if closing begins within a second. They are not closed after a second
Ctrl-C or SIGKILL.

Each worker's parent is a small process, its watchdog. When the worker ends, however it ends, the watchdog sends SIGTERM
to the processes that the environment started (a simulator, a browser), and SIGKILL a second later, before another
worker starts. These are all descendants of the worker, also daemons and those in a session of their own. So an
environment must not start a server that is to outlive its worker.

With `engine="queues"` there are no watchdogs: when the worker ends, what is still in its process group is killed, and
nothing else; on Windows, where there are no such groups, nothing.

Where the time goes
-------------------

`batch.stats` is about a call, `sampler.stats` about all calls (see `streamsampler.data.statistics.Stats`).
`stats.timers()` is a tree: resets, actions and timesteps, and in them what environments and agents time with
`streamsampler.timed`; `stats.timers(0)` is that of worker 0, and `--timers` prints it. What the script times itself is
under "script" there, in `sampler.stats`. Where nothing is timed this costs nothing; an entry of `timed` takes about a
microsecond.

```python
@streamsampler.timed("decide")
def lean(observation: Any) -> int:
    return int(observation[2] > 0)


with MultiprocessingSampler(lean, "CartPole-v1") as sampler:
    batch = sampler.obtain_samples(10_000)
    with streamsampler.timed("learn"):
        streamsampler.timed.gauge("loss", 1 / batch.returns.mean())  # in workers, too
    numbers = sampler.stats.flat()  # by name, as experiment trackers take them
    print(numbers["ms/agent/decide"], numbers["ms/script/learn"], "milliseconds for each timestep")
    print(sampler.stats.gauges()["loss"].maximum, numbers["gauges/loss"])
```

`sampler.stats.take_infos(batch, {"crashes": "sum", "level": "last"})` adds what environments report in their infos, and
`manager.stats.take_infos(steps, …)` does; of a "histogram" all values are in `stats.histograms`.

Log records
-----------

What environments and agents log in workers is handled in the sampler's process, by its handlers and at its levels, when
the worker's next report arrives; `record.worker` is the worker number. At most 1,000 records travel with one report;
one more record says how many were left out. The records of a worker that dies before its report are lost. The workers
of a `LocalSampler` log directly, without `record.worker`.

Limits of the system
--------------------

`sampler.worker_pids()` returns the workers' process ids, for tools that watch processes.

A worker takes up to seven file descriptors of the sampler's process. The limit (`ulimit -n`) is raised where the system
allows it; otherwise `streamsampler.ResourceLimitError` says how many are needed.

Every worker computes on one thread; `worker_threads` changes that. With another number of threads the last bits of a
network's numbers may differ.
"""
