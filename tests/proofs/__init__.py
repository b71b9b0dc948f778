"""Proofs: what must hold, tried at length and reported with numbers. Each module here is one, and has `prove(scale)`."""
