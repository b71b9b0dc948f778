"""Several environments in each worker, with one call of the agent for all of them.

A network computes 32 actions in hardly more time than one. `streamsampler.VecWorker` runs several environments side by
side in each worker and asks the agent for all their actions at once:

```python
from streamsampler import MultiprocessingSampler, VecWorker

sampler = MultiprocessingSampler(agent, "CartPole-v1", worker_class=VecWorker, worker_args={"n_envs": 32})
```

The agent needs `get_actions(observations) -> (actions, agent_infos)`: n observations side by side (leaves of shape (n,
…)), n actions, and a dict of arrays of (n, …). `TorchAgent`, `MlpAgent` and `SB3Agent` of `streamsampler.adapters` have
it. Without `get_actions` the agent is asked for one action at a time, and a log message says so. An agent with a memory
also takes `slots` and `starts`: which environment each row comes from, and whether the row begins a trajectory; or its
`reset` takes a mask, `reset(do_resets)`. If `get_value` takes the environment as `slot`, it is asked about the last
observation of a trajectory while the agent remembers that trajectory. With `seeds` it can draw for each trajectory
separately. See `streamsampler.Agent`.

Lanes and blocks
----------------

What is computed in one batch may influence the last bits of a network's numbers. Where the rows of a batch of constant
shape do not, the agent says `row_independent = True`. Then trajectories run in *lanes*: each is a function of itself
alone, in environment i mod `n_envs`, and no environment waits for another one. What the agent says is probed where it
runs, and an error where it is not true. Such an agent draws from the keyword `draws` of its `get_actions`, and an
environment from its `np_random`: the trajectories share the global generators, so that drawing from those is an error.

All other agents, and those with a `block_size`, run in *blocks* of consecutive indices, and the trajectories of a block
are a function of the block alone. The global generators and the agent are seeded once a block, each environment once a
trajectory. A block has one trajectory for each environment, or `block_size` trajectories. Longer blocks lose less at
their ends, where environments wait for the longest trajectory; shorter ones are better shared among workers.

Both ways, the same seed, `n_envs` and `block_size` give the same batches for any number of workers. Batches always have
`n_envs` rows: where an environment has no trajectory, its row is a copy of another one.

Native vector environments
--------------------------

An environment may be vectorised natively: `lambda: gymnasium.make_vec("CartPole-v1", num_envs=32)` with `n_envs=32`.
Its stream is cut into whole trajectories with their true final observations, in every autoreset mode. Unless the mode
is `DISABLED`, such an environment does not reseed itself between trajectories: then `batch.seeds[i]` alone does not
start trajectory `i` again, but its block does. At the end of a block environments stand silent until its longest
trajectory has ended; where that is much of the time, a hint names a longer `block_size`.

Masks of actions (see `streamsampler.agents`) are found in its observations, in its infos, and by `call("action_masks")`
where all its environments have that method. Environments that stand silent take an action that their mask allows.

An environment that ignores `reset(seed=…)`, and draws from the seed that it is made with, as EnvPool's do, is made
again for each block: pass a function that takes a seed,
`lambda seed=0: envpool.make("CartPole-v1", "gymnasium", num_envs=32, seed=seed)`.
"""
