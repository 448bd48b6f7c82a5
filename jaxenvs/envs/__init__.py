"""The environments: a folder for each suite with a table of its ids, and a file for each environment.

The tables contain class names, so that a suite is imported when one of its environments is created.
"""

from jaxenvs.envs import box2d, classic_control, goals, minatar, toy_text

SUITES = (classic_control, toy_text, minatar, box2d, goals)
