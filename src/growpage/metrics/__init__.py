"""Numbers computed from stored samples: accuracy, serving speed, capacity events."""
