"""The soft overlong punishment (paper section 3.4, equation 13)."""

from dataclasses import dataclass


@dataclass(frozen=True)
class SoftPenalty:
    """Lengths in tokens: free up to `expected_tokens`, then linear over `cache_tokens`, then -1; times `factor`."""

    expected_tokens: int
    cache_tokens: int
    factor: float = 1.0

    def __call__(self, tokens: int) -> float:
        """In [-factor, 0]. verl's own buffer has no lower end; the paper's equation stops at -1."""
        over = tokens - self.expected_tokens
        return -self.factor * min(max(over / self.cache_tokens, 0.0), 1.0)
