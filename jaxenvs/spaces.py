"""Sampling and membership of Gymnasium's spaces inside traced code."""
