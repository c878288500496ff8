"""The report of a comparison: one file of HTML that needs no network."""
