"""Engines decide what is averaged and when; they know no formula and never call autograd themselves."""
