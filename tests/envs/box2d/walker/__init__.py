"""An executable specification of BipedalWalker and of the part of Box2D it needs: scalar, in float32, under Numba."""
