"""Who is measured: networks, laws over their weights, weights and checkpoints, models as a user names them."""
