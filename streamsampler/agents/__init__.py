"""What turns observations into actions."""
