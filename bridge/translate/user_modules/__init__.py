"""What the code of a user's modules reads and changes besides tensors: a reason not to compile it, or to watch it."""
