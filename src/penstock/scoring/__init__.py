"""Which samples are worth training on: scores of samples, what they cost, and whether selecting pays."""
