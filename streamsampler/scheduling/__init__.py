"""Which tickets go to whom, when a batch is complete, who is restarted and who hangs. Pure: no process, no clock."""
