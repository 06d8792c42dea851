"""From a suite file to cases: the suite, the plan, and what it is expected to cost."""
