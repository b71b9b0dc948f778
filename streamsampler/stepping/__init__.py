"""Step environments from the parent's own process, in worker processes or in this one."""
