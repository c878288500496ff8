"""Operation: health, memory, metrics, recordings, the watchdog."""
