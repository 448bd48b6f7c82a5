"""Worlds of Box2D, as Gymnasium has them."""
