"""Start and end processes."""
