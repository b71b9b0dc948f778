"""Files: batches as `.npz`, and folders of shards for more than fits into memory.

`batch.save("file.npz")` writes a batch, and `streamsampler.load("file.npz")` reads it. Neither uses pickle;
`numpy.load(path, allow_pickle=False)` reads the arrays. `streamsampler.storage.npz` describes the format for readers in
other languages.

Files hold numbers, texts, arrays and lists of them. Where infos hold other objects, such as handles of a simulator,
sampling into a file or a folder ends with the first trajectory, and names these infos. `--without-infos handle,pose`
leaves some out, `--without-infos` all; in Python `infos=["x", "y"]` keeps some and `infos=False` none, in `batch.save`
and in `sample_to_folder`. `with sampler.writable_infos():` around calls of your own ends them that early, too.

Folders of shards
-----------------

`streamsampler.sample_to_folder` writes files of at least `shard_size` timesteps each, as they are complete; so does
`streamsampler sample … --shard-size N --out FOLDER`. Memory holds about two of them, however many timesteps are asked
for. `streamsampler.TrajectoryFolder` reads the folder lazily; `streamsampler.load` also reads each shard by itself.

```python
folder = streamsampler.TrajectoryFolder("big")  # or load("big")
len(folder), folder.n_timesteps, folder.complete
for shard in folder.shards:  # one TrajectoryBatch in memory at a time
    shard.returns.mean()
folder[12_345], folder[1_000:2_000]  # reads only the shards they are in; folder.to_batch() reads all
```

`load("one", "another")` reads several folders as one: those of runs with other seeds, on other machines for instance.

`folder.torch_dataset(sequence_length=32, shuffle=True)` is an `IterableDataset` of PyTorch; other libraries' formats
are in `streamsampler.formats`.

Whatever ends the run (Ctrl-C, a full disk, an error, SIGKILL), the same call with `resume=True` or command with
`--resume` continues with the first missing shard, on any number of workers. The finished folder is the same, byte for
byte, as that of an uninterrupted run. Where a shard is damaged, missing or of another run, resuming is an error that
says which.

`manifest.json` in the folder holds what decides about the data (environment, seed, amounts, version; of the command
also the agent) and which trajectories each shard has. What differs is refused; `--resume` reads the seed from it where
none is given. It cannot see code: an environment or an agent that you changed in between. `--order arrival` cannot be
repeated, and is refused. With `--on-failure drop` the manifest also counts the indices that a shard leaves out. The
folder is locked while it is written.
"""
