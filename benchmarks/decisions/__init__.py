"""What the decisions in docs/decisions/ rest on, measured: one module a decision, named for it."""
