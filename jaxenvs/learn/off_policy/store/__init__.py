"""The replay store inside compiled functions: its arrays, the tags of its slots, and hindsight."""
