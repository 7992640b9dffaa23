"""Training with verl and vLLM, in a process of its own, and `dapo run`, which supervises it."""
