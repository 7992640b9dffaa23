"""`dapo checkpoints`: what lies in the store, whether it is whole, and what may go."""
