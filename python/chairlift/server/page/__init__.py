"""The live page: its files, its feed of steps, and the requests that it runs; docs/feed.md."""
