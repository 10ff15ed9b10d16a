"""The paper's five figures, made again by one command."""
