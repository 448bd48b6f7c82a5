"""Analysis of the code of a user's schedules and modules: whether it is pure, and what it reads.

What is not known to be pure is a reason not to compile. What it reads is compared before compiled functions run.
"""
