"""Speed of the engine: workloads without text, other engines on the same ones, kernels against their byte floor."""
