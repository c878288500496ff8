"""The docs site, built from the pages of the repository as they are."""
