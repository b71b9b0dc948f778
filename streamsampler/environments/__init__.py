"""Making environments, and changing them between calls."""
