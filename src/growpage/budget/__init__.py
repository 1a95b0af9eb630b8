"""How much KV capacity a request gets (policies) and which tokens stay (scorers)."""
