"""How networks are trained: recipes, steps, the training loop, sweeps, meta-learning, signals."""
