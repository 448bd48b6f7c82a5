"""Rollout buffers: SB3's filled and read by programs, and one of tensors."""
