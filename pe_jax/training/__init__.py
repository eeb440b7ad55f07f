"""Training and evaluation: configs, data, sharding, the step, checkpoints, losses by length."""
