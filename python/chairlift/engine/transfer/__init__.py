"""KV blocks between an engine and others: a server that computes prompts, one that has them."""
