"""Parts of benchmarks/dashboard.py."""
