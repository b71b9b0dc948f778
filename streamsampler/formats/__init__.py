"""Export of trajectories and evaluations to the formats of other libraries, each an extra.

`export` writes a batch, a file or a folder shard by shard; `to_pandas` and `to_tensordict` return all data in memory.
Guide: `streamsampler/docs/storage-and-formats.md`.
"""

from streamsampler.formats.export import export, save_evaluations
from streamsampler.formats.tables import Frames, to_pandas, to_tensordict

__all__ = ["Frames", "export", "save_evaluations", "to_pandas", "to_tensordict"]
