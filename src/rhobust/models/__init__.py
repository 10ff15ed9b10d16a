"""Models by name, and what the library knows about layers."""

from rhobust.models.group_norm import to_group_norm

__all__ = ["to_group_norm"]
