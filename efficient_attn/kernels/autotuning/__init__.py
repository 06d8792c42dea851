"""Which of several forms of a computation to take: by timings of this machine, or by a rule where there are none."""
