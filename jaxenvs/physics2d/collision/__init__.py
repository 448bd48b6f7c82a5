"""Where bodies are, come near and touch: all that is geometry alone, as in Box2D's folder `collision`."""
