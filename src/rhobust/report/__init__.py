"""Reports: one page about runs and their measurements."""
