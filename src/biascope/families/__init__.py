"""The networks that are measured: networks, distributions of their weights, checkpoints, models as a user names them."""
