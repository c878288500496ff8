"""Which request had which row at which step: one value, and the files that show it."""
