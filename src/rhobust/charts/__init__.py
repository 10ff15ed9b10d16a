"""Charts, drawn from plain numbers."""
