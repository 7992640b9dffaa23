"""Alerts leave the page, by webhook and e-mail: `dapo alerts send` is a process of its own, for which nothing waits."""
