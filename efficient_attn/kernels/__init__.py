"""The fast forms, named by what they compute, and the oracles' arithmetic: the only place that knows about speed."""
