"""Analysis of what the code of a user's modules reads and changes besides tensors.

What cannot be followed is a reason not to compile. The rest is compared before compiled functions run.
"""
