"""Geometry of bodies: frames, near pairs and points of contact, as in Box2D's folder `collision`."""
