"""A reward function whose import takes longer than a check may."""

import time

time.sleep(1.5)


def one(response: str, truth: str, prompt: str = "") -> float:
    return 1.0
