"""Agents made of other libraries' policies: PyTorch modules and Stable-Baselines3 models.

Import the module of the library that you use: `streamsampler.adapters.torch`, `streamsampler.adapters.mlp`,
`streamsampler.adapters.sb3`.

PyTorch
-------

With PyTorch (`pip install torch`) an `nn.Module` that maps a batch of observations to logits (Discrete)
or means (Box) is an agent. The log-probabilities of actions are in `agent_infos`; parameters travel as arrays.

```python
from streamsampler.agents.torch import TorchAgent

agent = TorchAgent(policy, env.action_space)
with MultiprocessingSampler(agent, "CartPole-v1") as sampler:
    batch = sampler.obtain_samples(4_000, agent_update=policy)  # or policy.state_dict()
    batch.agent_infos["log_prob"], batch.observations  # (T,), (T, 4)
```

- `GaussianHead(space, squash=True)` of `streamsampler.agents.heads` instead of a space squashes actions by tanh.
- Actions that are drawn for a Box are clipped to it. `agent_infos["raw_action"]` is the action before clipping, and
  `log_prob` its log-density. `deterministic=True` takes the mode instead of drawing.
- A module may return a dict: `{"logits": …, "value": …}` records the value as well.
- A module with `initial_state(n)` remembers: it is called as `module(observations, state)` and returns `(outputs,
  state)`, with a state for each environment. `batch.minibatches(…, by="sequence")` cuts where states were recorded, and
  `streamsampler.examples.ppo_recurrent` learns from them.
- Each worker has a copy on the CPU, in evaluation and inference mode.
- Where there are GPUs that workers do not use, set an empty `CUDA_VISIBLE_DEVICES`: otherwise torch takes 0.2 ms of
  each trajectory to note its seed for a GPU.

`streamsampler.adapters.mlp.MlpAgent(policy, env.action_space)` runs a small `nn.Sequential` of Linear, Tanh, ReLU and
Sigmoid in NumPy, several times as fast. Its workers do not import torch.

Stable-Baselines3
-----------------

With Stable-Baselines3 (`pip install stable-baselines3`) its models are agents, recurrent ones included; so is any
object with their `predict`. Only the model's policy is sent to the workers.

```python
from streamsampler.agents.sb3 import SB3Agent

agent = SB3Agent.load("model.zip", vec_normalize="vecnormalize.pkl", deterministic=True)  # or SB3Agent(model)
```

A model that was trained under a `VecNormalize` needs its statistics. `SB3Agent(model)` takes them from the model,
frozen; next to an archive they are in a file of their own, which `vec_normalize` names. On the command line: `--agent
model.zip`, with `--vec-normalize vecnormalize.pkl`. Without them the model acts on observations unlike those that it
learned from: where an archive of an on-policy algorithm says that it was trained under a `VecNormalize`, or such a file
is in its folder, there is a warning, also with `--quiet`. Archives of off-policy algorithms do not say it.

`benchmarks/ppo/run.py` in the repository trains PPO on this library, on Gymnasium's vector environments, and with
Stable-Baselines3.
"""
