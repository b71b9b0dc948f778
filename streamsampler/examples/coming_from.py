"""Coming from garage, Stable-Baselines3, Gymnasium, RLlib, TorchRL, ML-Agents or DI-engine: their call, and ours.

What is different from all of them: a trajectory is a function of its seed alone, so the number of workers is no part of
an experiment; a timestep has `terminated` and `truncated`, and no `done`; a batch has whole trajectories, with one row
for each timestep, unless fragments are asked for.

In the tables `sampler` is a `streamsampler.MultiprocessingSampler`, `batch` is what a call of it returned, `manager` is
a `streamsampler.EnvManager`, and `env_id` is an id or a function that makes an environment.

garage
------

Its calls run as they are; what has another name here says so in an error.

| garage | streamsampler |
|---|---|
| `MultiprocessingSampler(worker_factory, agents, envs)` | the same, or its method `from_worker_factory` |
| `WorkerFactory(max_path_length=100)` | `WorkerFactory(max_episode_length=100)`; the old name works, with a warning |
| `sampler.obtain_samples(itr, num_samples, agent_update)` | the same; or without `itr`, which has no effect |
| `sampler.obtain_exact_episodes(5, policy)` | `sampler.obtain_exact_trajectories(5, policy)` |
| `SetTaskUpdate(EnvType, task, wrapper)` | the same; `wrapper(env, task)` wraps the environment, or is None |
| `batch.padded_rewards` | `batch.padded("rewards")` with `batch.mask` |
| `batch.terminals` | `batch.terminated` |
| `batch.to_trajectory_list()` | `batch.to_list()`; or `for trajectory in batch`, each a batch of one |
| `sampler.shutdown_worker()` | the same, or `sampler.close()`, or `with` |

```python
from streamsampler import MultiprocessingSampler, RandomAgent, WorkerFactory

factory = WorkerFactory(seed=100, max_episode_length=100, n_workers=2)
with MultiprocessingSampler.from_worker_factory(factory, RandomAgent(), "CartPole-v1") as sampler:
    batch = sampler.obtain_samples(1_000, agent_update=RandomAgent())
    print(batch.lengths.max(), batch.padded("rewards").shape)
```

Stable-Baselines3
-----------------

| Stable-Baselines3 | streamsampler |
|---|---|
| `make_vec_env(env_id, n_envs=8)`, `SubprocVecEnv` | `EnvManager(env_id, n_envs=8, autoreset="same_step")` |
| the `VecEnv` that a model takes | `manager.sb3_env()` |
| `PPO.collect_rollouts`, `n_steps=128` | `sampler.obtain_fragments(128, n_envs=8)` |
| `compute_returns_and_advantage(last_values, dones)` | `batch.advantages(values, last_values, gamma=0.99)` |
| `RolloutBuffer.get(batch_size)` | `batch.minibatches(64, seed=1, epochs=10)` |
| `evaluate_policy(model, env, n_eval_episodes=100)` | `evaluate(model, env_id, n_trajectories=100)` |
| `PPO.load("model.zip")` | `SB3Agent.load("model.zip")` |
| `model.predict(obs, action_masks=get_action_masks(env))` | `SB3Agent(model)`, which gets the masks by itself |
| `VecNormalize(env)` | `MultiprocessingSampler(agent, env_id, observation_filter=RunningNorm())` |
| `infos[i]["terminal_observation"]` | `batch.last_observations[i]` |

With environments as cheap as CartPole, and no need for restored environments and seeded episodes, stay with
`DummyVecEnv`: it takes a third of the CPU time of `sb3_env()`, and no message for each step as workers do.

`SB3Agent` is in `streamsampler.adapters.sb3`, `RunningNorm` in `streamsampler.filters`.

```python
from streamsampler import EnvManager, MultiprocessingSampler
from streamsampler.filters import RunningNorm

with MultiprocessingSampler("random", "CartPole-v1", seed=1, observation_filter=RunningNorm()) as sampler:
    batch = sampler.obtain_fragments(128, n_envs=8)
    print(batch.as_grid("rewards").shape)  # (128, 8)
with EnvManager("CartPole-v1", n_envs=8, autoreset="same_step") as manager:
    print(manager.sb3_env().num_envs)
```

Gymnasium's vector environments
-------------------------------

| Gymnasium | streamsampler |
|---|---|
| `AsyncVectorEnv([make] * 8)` | `EnvManager([make] * 8, n_envs=8).vector_env()` |
| `autoreset_mode=AutoresetMode.SAME_STEP` | `EnvManager(env_id, n_envs=8, autoreset="same_step").vector_env()` |
| `infos["final_info"]["episode"]`, `infos["_episode"]` | the same |
| `envs.reset(options={"reset_mask": mask})` | the same |

Later episodes get seeds that are derived from the first one, the same for any number of workers; Gymnasium's draw on.

With environments as cheap as CartPole stay with `SyncVectorEnv`: in one process it takes .38 of the CPU time of
`SerialEnvManager.vector_env()`, and with 32 environments it is faster than an `EnvManager` with two workers. Workers
gain where a step takes longer than messages do: `streamsampler bench` measures them with your environment.

```python
import numpy as np

from streamsampler import EnvManager

with EnvManager("CartPole-v1", n_envs=8, seed=1) as manager:
    envs = manager.vector_env()
    observations, infos = envs.reset(seed=1)
    observations, rewards, terminated, truncated, infos = envs.step(np.zeros(8, np.int64))
    print(observations.shape, rewards.sum())
```

RLlib
-----

| RLlib | streamsampler |
|---|---|
| `env_runners(num_env_runners=8)` | `MultiprocessingSampler(agent, env_id, n_workers=8)` |
| `env_runners(num_envs_per_env_runner=32)` | of the sampler: `worker_class=VecWorker, worker_args={"n_envs": 32}` |
| `batch_mode="complete_episodes"` | `sampler.obtain_samples(4_000)` |
| `batch_mode="truncate_episodes"`, `rollout_fragment_length=128` | `sampler.obtain_fragments(128, n_envs=8)` |
| `env_runner.sample(num_episodes=10)` | `sampler.obtain_trajectories(10)` |
| `env_runner_group.sync_weights()` | `sampler.obtain_samples(4_000, agent_update=parameters)` |
| `ray.init(address="10.0.0.1:6379")` | `RaySampler(agent, env_id, ray_address="10.0.0.1:6379")` |
| `policies`, `policy_mapping_fn` | `agents={"name": agent}`, `policy_of=`: see `streamsampler.workers.several` |
| callbacks, `on_episode_step` | `hooks=` with `on_timestep`: see `streamsampler.workers.hooks` |
| connectors that normalise observations | `observation_filter=RunningNorm()` |
| `concat_samples(batches)` | `TrajectoryBatch.concatenate(batches)` |
| `restart_failed_env_runners=True` | always; `max_restarts=10` limits it |
| `evaluation_duration=100` | `evaluate(agent, env_id, n_trajectories=100)` |

```python
from streamsampler import MultiprocessingSampler, TrajectoryBatch, VecWorker

with MultiprocessingSampler(
    "random", "CartPole-v1", n_workers=2, worker_class=VecWorker, worker_args={"n_envs": 4}, seed=1
) as sampler:
    batches = [sampler.obtain_samples(500) for _ in range(2)]
    print(TrajectoryBatch.concatenate(batches).n_timesteps)
```

TorchRL
-------

| TorchRL | streamsampler |
|---|---|
| `MultiSyncDataCollector([make_env] * 8, policy)` | `MultiprocessingSampler(agent, env_id, n_workers=8)` |
| its `policy`, a module | `TorchAgent(policy, env.action_space)` of `streamsampler.adapters.torch` |
| its `frames_per_batch=1024` | `sampler.obtain_samples(1_024)`, or `sampler.obtain_fragments(128, n_envs=8)` |
| `MultiaSyncDataCollector` | `MultiprocessingSampler(agent, env_id, staleness=1)`: one version behind, reproducible |
| `SyncDataCollector` | `LocalSampler(agent, env_id)` |
| `for data in collector` | a call for each batch; for single trajectories `sampler.stream()` |
| `collector.update_policy_weights_()` | `sampler.obtain_samples(1_024, agent_update=policy)` |
| `split_trajectories(data)` | `batch.split()`, or `batch.padded("observations")` with `batch.mask` |
| `GAE(gamma=0.99, lmbda=0.95)` | `batch.advantages(values, last_values, gamma=0.99, lambda_=0.95)` |
| `ParallelEnv(8, make_env)` | `EnvManager(env_id, n_envs=8)` |
| a TensorDict | `to_tensordict(batch)` of `streamsampler.formats`, or `batch.to_torch()` |
| `env.rollout(100)` | `sampler.obtain_trajectories(1)`, with `max_episode_length=100` of the sampler |

```python
from streamsampler import LocalSampler

with LocalSampler("random", "CartPole-v1", seed=1, max_episode_length=100) as local:
    tensors = local.obtain_trajectories(1).to_torch()
    print(tensors["observations"].shape, tensors["rewards"].dtype)
```

ML-Agents
---------

| ML-Agents | streamsampler |
|---|---|
| `UnityEnvironment(file_name, worker_id=0)` | a function of `worker_number` that makes a Gymnasium environment |
| `env.get_steps(behavior_name)` | `manager.recv()`, a `Steps` |
| `env.set_actions(behavior_name, actions)` and `env.step()` | `manager.send(actions, steps.env_ids)` |
| `SubprocessEnvManager(env_factory, run_options, n_env=8)` | `EnvManager(env_id, n_envs=8)` |
| `env_manager.get_steps()`: whichever are ready | `manager.recv(min_envs=1)` |
| `channel.set_float_parameter("mass", 2.0)` | `sampler.obtain_samples(500, env_update=SetParameters({"mass": 2.0}))` |
| | or `manager.set_parameters({"mass": 2.0})` |
| a sampler of parameters in the YAML file | `SetParameters({"mass": Uniform(1, 2)})` of `streamsampler.environments` |
| several `behavior_name`s, `agent_id` | `agents={"behavior": agent}` of samplers, not of managers: |
| | see `streamsampler.workers.several` |
| group rewards | the rewards that the environment gives each agent |

```python
from streamsampler import EnvManager

with EnvManager("CartPole-v1", n_envs=4, n_workers=2, seed=1) as manager:
    manager.async_reset()
    for _ in range(100):
        steps = manager.recv(min_envs=1)
        manager.send((steps.observations[:, 2] > 0).astype("int64"), steps.env_ids)
```

DI-engine
---------

| DI-engine | streamsampler |
|---|---|
| `SampleSerialCollector.collect(n_sample=1000)` | `sampler.obtain_fragments(125, n_envs=8)` |
| `EpisodeSerialCollector.collect(n_episode=10)` | `sampler.obtain_trajectories(10)` |
| `SubprocessEnvManagerV2([make_env] * 8)` | `EnvManager(env_id, n_envs=8)` |
| `env_manager.ready_obs`, `env_manager.step(actions)` | `manager.recv()`, `manager.send(actions, steps.env_ids)` |
| `env_manager.seed(0)` | `seed=0`, when it is made |
| `InteractionSerialEvaluator.eval()`, `n_evaluator_episode=100` | `evaluate(agent, env_id, n_trajectories=100)` |
| `get_gae(data, last_value, gamma, gae_lambda)` | `batch.advantages(values, last_values, gamma=0.99, lambda_=0.95)` |
| `get_train_sample(data)`, sequences of `unroll_len` | `TrajectoryFolder("big").torch_dataset(sequence_length=32)` |
| `max_retry=5`, `step_timeout` | `EnvManager(env_id, n_envs=8, step_timeout=60)`, which restores what is lost |

```python
from streamsampler import MultiprocessingSampler

with MultiprocessingSampler("random", "CartPole-v1", seed=1) as sampler:
    fragments = sampler.obtain_fragments(125, n_envs=8)  # 1,000 timesteps
    print(fragments.n_timesteps, len(sampler.obtain_trajectories(10)))
```
"""
