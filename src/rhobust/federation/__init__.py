"""Alg. 3 without a transport: server, workers, and the engine whose step is a round."""
