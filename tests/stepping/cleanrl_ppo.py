"""PPO in one file, as CleanRL writes it, over any `gymnasium.vector.VectorEnv` that resets in the next step."""

import hashlib

import gymnasium as gym
import numpy as np
import torch
from torch import nn
from torch.distributions.categorical import Categorical


def layer_init(layer, std=1.4142):
    nn.init.orthogonal_(layer.weight, std)
    nn.init.constant_(layer.bias, 0.0)
    return layer


class Agent(nn.Module):
    def __init__(self, envs):
        super().__init__()
        n_inputs = int(np.prod(envs.single_observation_space.shape))
        self.critic, self.actor = (
            nn.Sequential(
                layer_init(nn.Linear(n_inputs, 64)), nn.Tanh(), layer_init(nn.Linear(64, 64)), nn.Tanh(),
                layer_init(nn.Linear(64, n_outputs), std=std),
            )
            for n_outputs, std in ((1, 1.0), (envs.single_action_space.n, 0.01))
        )  # fmt: skip

    def get_action_and_value(self, x, action=None):
        probs = Categorical(logits=self.actor(x))
        if action is None:
            action = probs.sample()
        return action, probs.log_prob(action), probs.entropy(), self.critic(x).flatten()


def estimate_advantages(rewards, values, dones, next_value, next_done, gamma, gae_lambda):
    advantages = torch.zeros_like(rewards)
    last = 0
    for t in reversed(range(len(rewards))):
        is_last = t == len(rewards) - 1
        nextnonterminal = 1.0 - (next_done if is_last else dones[t + 1])
        nextvalues = next_value if is_last else values[t + 1]
        delta = rewards[t] + gamma * nextvalues * nextnonterminal - values[t]
        advantages[t] = last = delta + gamma * gae_lambda * nextnonterminal * last
    return advantages


def update(agent, optimizer, batch, minibatch_size, rng, clip=0.2, epochs=4):
    obs, actions, logprobs, advantages, returns = batch
    for _ in range(epochs):
        for mb in np.split(rng.permutation(len(obs)), len(obs) // minibatch_size):
            _, newlogprob, entropy, newvalue = agent.get_action_and_value(obs[mb], actions[mb])
            ratio = (newlogprob - logprobs[mb]).exp()
            advantage = (advantages[mb] - advantages[mb].mean()) / (advantages[mb].std() + 1e-8)
            pg_loss = torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - clip, 1 + clip)).mean()
            v_loss = 0.5 * ((newvalue - returns[mb]) ** 2).mean()
            optimizer.zero_grad()
            (pg_loss - 0.01 * entropy.mean() + 0.5 * v_loss).backward()
            nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
            optimizer.step()


def train(envs, total_timesteps, seed=1, num_steps=128, learning_rate=2.5e-4, gamma=0.99, gae_lambda=0.95):
    """Train on vector environments, and close them; return the episodes' returns and a digest of the parameters."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    envs = gym.wrappers.vector.RecordEpisodeStatistics(envs)
    n = envs.num_envs
    agent = Agent(envs)
    optimizer = torch.optim.Adam(agent.parameters(), lr=learning_rate, eps=1e-5)
    obs = torch.zeros((num_steps, n, *envs.single_observation_space.shape))
    actions = torch.zeros((num_steps, n, *envs.single_action_space.shape), dtype=torch.int64)
    logprobs, rewards, dones, values = (torch.zeros((num_steps, n)) for _ in range(4))
    episodic_returns = []
    next_obs, _ = envs.reset(seed=seed)
    next_obs, next_done = torch.Tensor(next_obs), torch.zeros(n)
    num_iterations = total_timesteps // (n * num_steps)
    for iteration in range(num_iterations):
        optimizer.param_groups[0]["lr"] = (1.0 - iteration / num_iterations) * learning_rate
        for step in range(num_steps):
            obs[step], dones[step] = next_obs, next_done
            with torch.no_grad():
                actions[step], logprobs[step], _, values[step] = agent.get_action_and_value(next_obs)
            next_obs, reward, terminations, truncations, infos = envs.step(actions[step].numpy())
            rewards[step] = torch.tensor(reward)
            next_obs, next_done = torch.Tensor(next_obs), torch.Tensor(np.logical_or(terminations, truncations))
            if "episode" in infos:
                episodic_returns += infos["episode"]["r"][infos["_episode"]].tolist()
        with torch.no_grad():
            next_value = agent.get_action_and_value(next_obs)[3]
        advantages = estimate_advantages(rewards, values, dones, next_value, next_done, gamma, gae_lambda)
        batch = [it.flatten(0, 1) for it in (obs, actions, logprobs, advantages, advantages + values)]
        update(agent, optimizer, batch, n * num_steps // 4, rng)
    envs.close()
    digest = hashlib.sha256(b"".join(it.detach().numpy().tobytes() for it in agent.parameters())).hexdigest()
    return episodic_returns, digest
