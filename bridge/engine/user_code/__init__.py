"""Which user code runs while a model trains: overridden methods, signal handlers, environments that reach the model."""
