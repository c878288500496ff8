"""Chats to prompts by the template of a model, in a process of its own."""
