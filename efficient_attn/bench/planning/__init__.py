"""From a suite file to cases: suite, plan and cost estimate."""
