"""From a model's output to a verdict."""
