"""The demo's task and model, made on the spot: two-digit addition, and a small Qwen2 that has begun to learn it."""
