"""Batches of trajectories, and how they are recorded.

A `streamsampler.TrajectoryBatch` of N trajectories with T timesteps in all holds:

| attribute | shape |
|---|---|
| `observations`, `actions`, `rewards` | (T, …), (T, …), (T,) |
| `last_observations` | (N, …): what followed each trajectory's last action |
| `terminated`, `truncated` | (N,), booleans; both may be true |
| `lengths`, `indices`, `seeds` | (N,) |
| `env_infos`, `agent_infos` | dicts of (T, …) |
| `episode_infos` | a dict of (N, …), from `env.reset` |

Derived: `next_observations`, `returns`, `discounted_returns(gamma)`, `step_types`, `starts`, `final_infos` (the infos
of each trajectory's last timestep), `padded(name)` with `mask`, and `to_torch()`, a dict of tensors that share the
batch's memory. `batch[i]` and iteration give batches of one trajectory; `split` and `concatenate` go between batches.
`to_list` and `from_list` go between a batch and dicts, one for each trajectory; `time_steps` yields single timesteps,
each with its `streamsampler.StepType`. Where a sampler has filters, `unfiltered` returns what the environment said.

For on-policy algorithms: `advantages(values, last_values, gamma, lambda_)`, `returns_to_go`, `td_lambda` and `vtrace`,
whose values may be tensors, with what would follow a truncated trajectory taken from `last_values`, the values of
`last_observations`; and `minibatches(size, seed=…)`:

```python
values, last_values = critic(batch.observations), critic(batch.last_observations)  # (T,), (N,)
advantages = batch.advantages(values, last_values, gamma=0.99, lambda_=0.95)  # (T,)
for rows in batch.minibatches(256, seed=1, epochs=10):
    update(batch.observations[rows], batch.actions[rows], advantages[rows])
```

Of an agent that remembers, such as a `TorchAgent` of a module with `initial_state`, `minibatches(…, by="sequence",
length=16)` gives sequences, each with the state that the agent had before its first timestep.

Dict and Tuple spaces stay nested. For type checkers say so once: `MultiprocessingSampler[dict[str, NDArray[Any]]](…)`;
everything else is arrays.

Dtypes and shapes are those of the spaces. Observations are copied when they are recorded, so an environment may reuse
its buffer. Data that do not fit are an error that shows both shapes, or both values where a number would become another
one in its space's dtype. Infos whose keys come and go follow Gymnasium's vector convention: `key`, and a boolean mask
`_key`. NaN, and observations outside their space, are recorded, counted in `stats.anomalies` and logged once;
`check="error"` of the samplers makes them errors, `check=None` does not look for them.

With several agents in one environment a batch is a `streamsampler.MultiAgentBatch`, which has such a batch for each
policy: see `streamsampler.workers.several`.

`batch.stats` and `sampler.stats` account for every timestep: kept, surplus, stale, abandoned, lost with a dead worker,
run for a check; and for where the workers' time went.
"""
