"""What engines need of a replay buffer: a ring of lanes on the host, which is the store of a program and back."""
