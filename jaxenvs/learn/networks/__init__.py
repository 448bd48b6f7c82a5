"""Networks of on-policy algorithms, the distributions over actions that they return, and LSTMs."""
