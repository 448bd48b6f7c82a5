"""Gymnasium environments in the actors of a Ray cluster: workers that share no memory with their parent."""
