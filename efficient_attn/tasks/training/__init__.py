"""What tasks that train models share: a problem as a value, the trainer, and the task made of both."""
