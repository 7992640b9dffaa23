"""Numbers as `kubectl get` shows them. Pure."""


def eta_text(seconds: int) -> str:
    """`2d4h`, `2h13m`, `12m`, `40s`: two units at most, as `kubectl get` shows ages."""
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}d{hours}h" if hours else f"{days}d"
    if hours:
        return f"{hours}h{minutes}m" if minutes else f"{hours}h"
    return f"{minutes}m" if minutes else f"{left}s"
