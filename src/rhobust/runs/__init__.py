"""Runs: from a configuration to a run directory, and back to a model."""
