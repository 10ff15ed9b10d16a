"""The commands of `rhobust`, one a file."""
