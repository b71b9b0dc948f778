"""PPO's update, the same for every source of data (see `run`).

Proximal policy optimisation with a clipped ratio (Schulman et al., 2017) and generalised advantage estimation
(Schulman et al., 2016), with the choices of Stable-Baselines3: separate networks of 2x64 tanh units, orthogonal
initialisation, advantages normalised in each minibatch, no value clipping, gradients clipped to a norm of 0.5, Adam
with an epsilon of 1e-5.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete, Space
from torch import nn

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class Task:
    """An environment, what counts as learned, and the hyperparameters.

    Attributes:
        env_id: The environment.
        target: The mean return of 20 successive episodes at which it counts as learned.
        timesteps: How long to train.
        batch: Timesteps in an iteration.
        minibatch: Timesteps in a gradient step.
        epochs: Passes over a batch.
        learning_rate: Adam's.
        gamma: Discount.
        gae_lambda: The lambda of generalised advantage estimation.
        clip: How far the ratio may move.
        trajectory: Timesteps of a trajectory when the task is learned.
    """

    env_id: str
    target: float
    timesteps: int
    batch: int = 2000
    minibatch: int = 250
    epochs: int = 10
    learning_rate: float = 1e-3
    gamma: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    trajectory: int = 500


TASKS = {
    task.env_id: task
    for task in (
        Task("CartPole-v1", target=475.0, timesteps=80_000),
        Task("Pendulum-v1", target=-300.0, timesteps=100_000, minibatch=125, gamma=0.9, trajectory=200),
        Task("HalfCheetah-v5", target=1000.0, timesteps=400_000, minibatch=100, learning_rate=3e-4, trajectory=1000),
    )
}


@dataclass(frozen=True)
class Experience:
    """T timesteps in S segments, one after the other. A segment ends with its episode, or where it was cut.

    Attributes:
        observations: (T, *O).
        actions: (T,) or (T, *A), as they were drawn, unclipped.
        log_probs: (T,).
        rewards: (T,).
        lengths: (S,).
        terminated: (S,): nothing is to come after it. Otherwise the value of the last observation is.
        last_observations: (S, *O): what followed each segment.
        episode_returns: Of the episodes that ended, in the order of their ends.
    """

    observations: np.ndarray
    actions: np.ndarray
    log_probs: np.ndarray
    rewards: np.ndarray
    lengths: np.ndarray
    terminated: np.ndarray
    last_observations: np.ndarray
    episode_returns: list[float]


def layer(n_inputs: int, n_outputs: int, gain: float) -> nn.Linear:
    """A linear layer with orthogonal weights."""
    linear = nn.Linear(n_inputs, n_outputs)
    nn.init.orthogonal_(linear.weight, gain)
    nn.init.zeros_(linear.bias)
    return linear


def mlp(n_inputs: int, n_outputs: int, gain: float) -> nn.Sequential:
    """Two hidden layers of 64."""
    root = math.sqrt(2.0)
    return nn.Sequential(
        layer(n_inputs, 64, root), nn.Tanh(), layer(64, 64, root), nn.Tanh(), layer(64, n_outputs, gain)
    )


class Actor(nn.Module):
    """Logits, or means with a standard deviation that does not depend on the observation."""

    def __init__(self, observation_space: Box, action_space: Space) -> None:
        super().__init__()
        n_outputs = int(action_space.n) if isinstance(action_space, Discrete) else math.prod(action_space.shape)
        self.body = mlp(math.prod(observation_space.shape), n_outputs, 0.01)
        if not isinstance(action_space, Discrete):
            self.log_std = nn.Parameter(torch.zeros(n_outputs))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        """(n, O) to (n, outputs)."""
        return self.body(observations)

    def log_prob(self, observations: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """(n,): of actions that were taken."""
        output = self(observations)
        if hasattr(self, "log_std"):
            noise = (actions - output) * torch.exp(-self.log_std)
            return -(0.5 * noise * noise + self.log_std + HALF_LOG_TWO_PI).sum(dim=1)
        return nn.functional.log_softmax(output, dim=1).gather(1, actions[:, None])[:, 0]


class Learner:
    """The actor, the critic, and their optimiser."""

    def __init__(self, task: Task, observation_space: Box, action_space: Space, seed: int) -> None:
        torch.manual_seed(seed)
        self.task = task
        self.actor = Actor(observation_space, action_space)
        self.critic = mlp(math.prod(observation_space.shape), 1, 1.0)
        self._parameters = [*self.actor.parameters(), *self.critic.parameters()]
        self._adam = torch.optim.Adam(self._parameters, lr=task.learning_rate, eps=1e-5, fused=True)
        self._random = np.random.default_rng(seed)

    def improve(self, data: Experience) -> None:
        """One iteration."""
        observations = torch.as_tensor(data.observations, dtype=torch.float32)
        with torch.no_grad():
            values = self.critic(observations)[:, 0].numpy()
            following = self.critic(torch.as_tensor(data.last_observations, dtype=torch.float32))[:, 0].numpy()
        advantages = self._advantages(data, values, np.where(data.terminated, 0.0, following))
        targets = torch.as_tensor(advantages + values, dtype=torch.float32)
        columns = (
            observations,
            torch.as_tensor(data.actions),
            torch.as_tensor(data.log_probs, dtype=torch.float32),
            torch.as_tensor(advantages, dtype=torch.float32),
            targets,
        )
        n = len(observations)
        for _ in range(self.task.epochs):
            order = torch.from_numpy(self._random.permutation(n))
            for start in range(0, n, self.task.minibatch):
                rows = order[start : start + self.task.minibatch]
                if len(rows) > 1:  # one advantage has no deviation
                    self._step(*(column[rows] for column in columns))

    def _advantages(self, data: Experience, values: np.ndarray, following: np.ndarray) -> np.ndarray:
        """Generalised advantage estimation, from each segment's end backwards."""
        gamma, decay = self.task.gamma, self.task.gamma * self.task.gae_lambda
        ends = np.cumsum(data.lengths)
        successors = np.empty_like(values, dtype=np.float64)
        successors[:-1] = values[1:]
        successors[ends - 1] = following
        errors = (data.rewards + gamma * successors - values).tolist()
        advantages, last = [0.0] * len(errors), set((ends - 1).tolist())
        advantage = 0.0
        for t in range(len(errors) - 1, -1, -1):
            advantage = errors[t] + (0.0 if t in last else decay * advantage)
            advantages[t] = advantage
        return np.array(advantages)

    def _step(
        self,
        observations: torch.Tensor,
        actions: torch.Tensor,
        log_probs: torch.Tensor,
        advantages: torch.Tensor,
        targets: torch.Tensor,
    ) -> None:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
        ratio = (self.actor.log_prob(observations, actions) - log_probs).exp()
        clipped = ratio.clamp(1.0 - self.task.clip, 1.0 + self.task.clip)
        loss = -torch.min(advantages * ratio, advantages * clipped).mean()
        loss = loss + 0.5 * nn.functional.mse_loss(self.critic(observations)[:, 0], targets)
        self._adam.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self._parameters, 0.5)
        self._adam.step()
