"""The replay store inside of programs: its arrays, the tags of its slots, and hindsight."""
