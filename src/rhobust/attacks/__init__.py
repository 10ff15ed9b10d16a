"""Attacks for evaluation."""
