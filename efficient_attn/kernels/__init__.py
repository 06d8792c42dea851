"""Fast forms, named by what they compute. The only place that knows about speed."""
