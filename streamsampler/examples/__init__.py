"""Short programs to copy from. Run one with `python -m streamsampler.examples.NAME`."""
