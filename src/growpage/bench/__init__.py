"""Benchmarks: problems and the messages that ask them."""
