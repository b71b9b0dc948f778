"""What sampler and worker say to each other, and when. Pure: no I/O, no clock."""
