"""What a run leaves on disk. The truth for metrics, tables and figures."""
