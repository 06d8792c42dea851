"""Problems that models are trained on, one per file."""
