"""One job: start it, continue it, supervise it, report it."""
