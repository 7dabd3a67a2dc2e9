"""Training a model: the warm start, GRPO over rollouts, the choice of the weights that are handed over."""
