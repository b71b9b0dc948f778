"""What must hold, tried at length and reported with numbers. Each module here is one proof, and has `prove(scale)`."""
