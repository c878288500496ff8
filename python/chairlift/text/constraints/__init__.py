"""Schemas and grammars, checked and compiled in a process with bounds."""
