"""Basic tools for every other package: errors, seeds, pickles, times, progress, atomic files."""
