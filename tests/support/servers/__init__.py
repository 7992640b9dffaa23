"""Real servers that tests start by themselves, on loopback."""
