"""Suites of tasks: each task as if it were evaluated alone, and statistics over tasks."""
