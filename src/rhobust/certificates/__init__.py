"""Certificates: bounds on the worst expected loss in a Wasserstein ball."""
