"""The serving engine: paged KV cache, continuous batching, budgets decided while decoding."""
