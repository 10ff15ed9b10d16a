"""The commands of `rhobust`, one a module."""
