"""Training: engines take steps, and one loop takes the steps of any engine."""
