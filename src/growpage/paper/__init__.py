"""Tables and figures from stored runs. Nothing here starts a run."""
