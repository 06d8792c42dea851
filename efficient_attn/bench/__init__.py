"""From a suite to rows: suite, plan, case, gate, measure."""
