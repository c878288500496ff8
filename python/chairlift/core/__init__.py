"""The door to the scheduler of the Rust core: its plans, its events."""
