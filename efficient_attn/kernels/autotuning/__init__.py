"""Select one of several implementations of an operation: by timings on this machine, or by a rule if there are none."""
