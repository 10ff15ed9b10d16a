"""How far data have drifted."""
