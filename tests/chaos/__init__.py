"""What a hostile world does to a server, over real gRPC; see docs/robustness.md."""

SCENARIOS = [
    "cancels",
    "deadlines",
    "rapid_reset",
    "connections",
    "malformed",
    "overload",
    "slow_readers",
    "vanishing_clients",
    "drain",
    "engine_faults",
    "kill_server",
    "soak",
    "invariance",
]
