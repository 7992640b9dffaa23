"""Pages that are written by hand but for one generated section between two marker lines."""


def with_section(page: str, begin: str, end: str, section: str) -> str:
    """The page with `section` between the lines `begin` and `end`. Raises ValueError when it has no such lines."""
    before, found_begin, rest = page.partition(begin)
    _, found_end, after = rest.partition(end)
    if not found_begin or not found_end:
        raise ValueError(f"The page has no lines {begin} and {end}, between which its generated section belongs.")
    return f"{before}{begin}\n\n{section}\n{end}{after}"
