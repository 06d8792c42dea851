"""Reports of runs: a web page, the same in Markdown, plots and a table of the rows. Nothing here imports torch."""
