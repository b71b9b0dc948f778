"""What every room may use: errors, seeds, pickles, times, progress, and files that appear whole."""
