"""Judge agents on suites: several tasks that are evaluated on the same seeds."""
