"""PPO with a linear softmax policy in NumPy, as somebody writes it who has read the README's first page."""

import sys

import numpy as np
from numpy.typing import NDArray

from streamsampler import MultiprocessingSampler, TrajectoryBatch

Floats = NDArray[np.float64]
GAMMA, CLIP, RATE = 0.99, 0.2, 1.0


class Policy:
    def __init__(self, n_inputs: int, n_actions: int) -> None:
        self.weights: Floats = np.zeros((n_inputs, n_actions))

    def probabilities(self, observations: Floats) -> Floats:
        logits = observations @ self.weights
        exps: Floats = np.exp(logits - logits.max(axis=-1, keepdims=True))
        total: Floats = exps.sum(axis=-1, keepdims=True)
        return exps / total

    def get_action(self, observation: Floats) -> tuple[int, dict[str, float]]:
        probabilities = self.probabilities(observation)
        action = int(np.random.choice(len(probabilities), p=probabilities))
        return action, {"log_prob": float(np.log(probabilities[action]))}

    def set_param_values(self, weights: Floats) -> None:
        self.weights = weights


def update(policy: Policy, batch: TrajectoryBatch) -> None:
    returns = batch.discounted_returns(GAMMA)
    advantages = (returns - returns.mean()) / (returns.std() + 1e-8)
    rows = np.arange(batch.n_timesteps)
    for _ in range(10):
        probabilities = policy.probabilities(batch.observations)
        ratios = np.exp(np.log(probabilities[rows, batch.actions]) - batch.agent_infos["log_prob"])
        clipped = (ratios * np.sign(advantages)) > np.sign(advantages) + CLIP
        weights = np.where(clipped, 0.0, ratios * advantages)
        chosen = np.eye(probabilities.shape[1])[batch.actions]
        policy.weights += RATE * batch.observations.T @ ((chosen - probabilities) * weights[:, None]) / len(rows)


def main(n_iterations: int, n_samples: int) -> None:
    policy = Policy(4, 2)
    with MultiprocessingSampler(policy, "CartPole-v1", n_workers=2, seed=1) as sampler:
        for iteration in range(n_iterations):
            batch = sampler.obtain_samples(n_samples, agent_update=policy.weights)
            update(policy, batch)
            print(iteration, batch.returns.mean())


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
