"""Runs the steps that the scheduler has planned."""
