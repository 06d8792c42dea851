"""What a model is built from: the layer around a mechanism, and what can be done with its weights."""
