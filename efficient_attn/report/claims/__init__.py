"""Published claims, one TOML file per source, and verdicts on them from the rows of runs."""
