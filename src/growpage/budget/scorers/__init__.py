"""Token scorers: which tokens are worth keeping, per layer and KV head."""
