"""What training tasks share: a problem as a value, the trainer, and the task made from both."""
