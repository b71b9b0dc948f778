"""A worker with several environments, or with one that is vectorised natively."""
