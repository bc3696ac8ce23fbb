"""A very small shop."""

VERSION = "1.4.0"


def price(amount: float, currency: str, digits: int) -> str:
    """Returns the amount as text, such as `12.50 EUR`."""
    if amount < 0:
        raise ValueError("a price must not be negative")
    return f"{amount:.{digits}f} {currency}"
