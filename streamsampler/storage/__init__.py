"""Files: batches, folders of shards, and what they are written with."""
