"""Trajectories and evaluations in the formats of other libraries, each an extra.

`export` writes a batch, a file or a folder shard by shard. `to_pandas` and `to_tensordict` return all of it in memory.
The guide is `streamsampler/docs/storage-and-formats.md`.
"""

from streamsampler.formats.export import export, save_evaluations
from streamsampler.formats.tables import Frames, to_pandas, to_tensordict

__all__ = ["Frames", "export", "save_evaluations", "to_pandas", "to_tensordict"]
