"""Saved Stable-Baselines3 models: detect the training algorithm without running any code of the file."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Mapping
from os import PathLike

from streamsampler.core.errors import UsageError

_BY_MODULE = {
    "stable_baselines3.dqn.": "DQN",
    "stable_baselines3.sac.": "SAC",
    "stable_baselines3.td3.": "TD3",  # and DDPG, which has the same policies
    "sb3_contrib.common.recurrent.": "RecurrentPPO",
    "sb3_contrib.common.maskable.": "MaskablePPO",
    "sb3_contrib.ars.": "ARS",
    "sb3_contrib.crossq.": "CrossQ",
    "sb3_contrib.qrdqn.": "QRDQN",
    "sb3_contrib.tqc.": "TQC",
}
"""The algorithm, by the module of its policies."""
_BY_ATTRIBUTE = {
    "cg_max_steps": "TRPO",
    "clip_range": "PPO",
    "top_quantiles_to_drop_per_net": "TQC",
    "target_entropy": "SAC",
    "target_policy_noise": "TD3",
    "exploration_rate": "DQN",
    "delta_std": "ARS",
    "gae_lambda": "A2C",
}
"""The algorithm, by an attribute unique among the entries that follow: for policies of the user's own classes."""


def algorithm_of(path: str | PathLike[str]) -> str:
    """Return the name of a saved model's training algorithm; raise UsageError if it is unknown."""
    try:
        with zipfile.ZipFile(path) as archive:
            data = json.loads(archive.read("data"))
    except OSError:
        raise
    except Exception as reason:  # a file of another kind can fail anywhere
        raise UsageError(
            f"{path} is not a model that Stable-Baselines3 saved ({type(reason).__name__}: {reason})"
        ) from None
    policy = data.get("policy_class") if isinstance(data, dict) else None
    if not isinstance(policy, Mapping):
        raise UsageError(f"{path} is not a model that Stable-Baselines3 saved: it has no policy_class")
    module = f"{policy.get('__module__')}."
    names = [name for beginning, name in _BY_MODULE.items() if module.startswith(beginning)]
    names += [name for attribute, name in _BY_ATTRIBUTE.items() if attribute in data]
    if names:
        return names[0]
    raise UsageError(f"{path} does not say which algorithm it was trained with: name it, as in SB3Agent.load(…, 'PPO')")
