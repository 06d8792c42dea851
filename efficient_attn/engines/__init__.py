"""Engines run jobs in worker processes. A job reports its case, stage and deadline in shared memory."""
