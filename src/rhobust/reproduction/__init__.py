"""The paper's five figures, remade by one command: every training planned, run several at a time, kept and drawn."""
