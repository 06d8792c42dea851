"""From a suite to rows: suite, plan, case, verification, measurement."""
