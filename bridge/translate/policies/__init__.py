"""SB3's and sb3-contrib's policies in JAX, and back: what acts, what is learnt, and no weights."""
