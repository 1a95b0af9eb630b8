"""Paged attention. Every kernel has its plain-torch twin in `reference`, the CPU path and the oracle."""
