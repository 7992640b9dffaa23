"""The demo's task and model, created locally: two-digit addition, and a small Qwen2 that has begun to learn it."""
