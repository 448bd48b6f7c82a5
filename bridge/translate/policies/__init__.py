"""Translation of the policies of SB3 and sb3-contrib to JAX: acting and learning, without weights."""
