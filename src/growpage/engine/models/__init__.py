"""Decoder models and their loaders."""
