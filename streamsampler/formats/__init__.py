"""Trajectories and evaluations in the formats of other libraries, each an extra.

```python
from streamsampler import evaluate
from streamsampler.formats import export, save_evaluations, to_pandas, to_tensordict

export(batch, "cartpole", to="minari", dataset_id="cartpole/random-v0")  # or a file, or a folder of shards
export(batch, "tables", to="parquet")  # timesteps.parquet and trajectories.parquet
timesteps, trajectories = to_pandas(batch)
tensors = to_tensordict(batch)
early = evaluate("random", "CartPole-v1", n_trajectories=10, seed=1)
save_evaluations({10_000: early}, "evaluations.npz")  # as Stable-Baselines3 writes them
```

On the command line:

```text
streamsampler export big --to minari --out cartpole --dataset-id cartpole/random-v0
streamsampler export cartpole.npz --to parquet --out tables
streamsampler export early.json late.json --to sb3 --timesteps 10000 --timesteps 20000 --out evaluations.npz
```

| format | extra | |
|---|---|---|
| Minari (HDF5) | `minari` | `streamsampler.formats.minari` |
| Parquet | `parquet` | `streamsampler.formats.tables` |
| pandas | `pandas` | `streamsampler.formats.tables` |
| TensorDict | `tensordict` | `streamsampler.formats.tables` |
| evaluations of Stable-Baselines3 | none | `streamsampler.formats.export` |

What a library cannot hold is left out by its path, such as the text of an observation:
`without=["observations.mission"]` in each of these functions, `--without observations.mission` on the command line.
`fields=["observations.image"]` keeps no other leaf of observations. Paths begin with observations, actions, env_infos,
agent_infos or episode_infos; see `streamsampler.data.leaves`. Of several agents, `policy="name"` and `--policy NAME`
say whose trajectories are exported.

An export reads one shard of a folder at a time, so that memory holds one or two of them, whatever the amount.
`to_tensordict` and `to_pandas` return all of it, in memory.

For training, `TrajectoryFolder.torch_dataset` reads folders as they are.
"""

from streamsampler.formats.export import export, save_evaluations
from streamsampler.formats.tables import Frames, to_pandas, to_tensordict

__all__ = ["Frames", "export", "save_evaluations", "to_pandas", "to_tensordict"]
