"""Engines that answer the same protocol."""
