"""Several processes that compute one model together; see docs/internals/ranks.md."""
