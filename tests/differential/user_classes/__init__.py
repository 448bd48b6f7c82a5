"""Classes as users write them: features extractors, buffers, callbacks, loggers, subclasses of algorithms."""
