"""Learning from demonstrations: recorded episodes, behaviour cloning and DAgger."""
