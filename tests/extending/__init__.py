"""A worker and an engine outside the package, made of public names alone."""
