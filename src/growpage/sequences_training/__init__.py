"""Training of the bundled model `sequences_reasoner`, from generated problems to a checkpoint with its card."""
