"""Short programs to copy from; each runs by `python -m streamsampler.examples.NAME`."""
