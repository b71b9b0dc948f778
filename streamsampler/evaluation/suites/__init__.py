"""Judge agents on suites: several tasks, evaluated on the same seeds."""
