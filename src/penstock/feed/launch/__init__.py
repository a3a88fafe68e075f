"""How feeders and trainers come together: start a feed, join it, list it, stop it."""
