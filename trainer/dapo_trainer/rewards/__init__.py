"""From a response's text to its reward: rules, length penalty, and processes for user code that can be killed."""
