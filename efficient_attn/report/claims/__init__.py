"""Published claims, a TOML file a source, and what the rows of runs say of them."""
