"""The demo's task and model, made on the spot: integer arithmetic with its working, and a small Qwen2 warm-started on it."""
