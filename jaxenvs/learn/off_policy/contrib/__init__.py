"""The off-policy algorithms of sb3-contrib: CrossQ, QRDQN and TQC."""
