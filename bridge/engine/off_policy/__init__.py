"""Compiled functions of off-policy algorithms: collecting into a replay store and updating, together or apart."""
