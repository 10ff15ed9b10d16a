"""Models by name, and what the library knows about layers."""
