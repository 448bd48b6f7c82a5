"""Core of the replay buffers: a ring of transitions on the host, its transfer to the device and back."""
