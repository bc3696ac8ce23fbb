"""A very small shop."""

VERSION = "1.4.0"


def price(amount: float, currency: str, digits: int) -> str:
    """The amount as text: `12.50 EUR`."""
    if amount < 0:
        raise ValueError("a price is not negative")
    return f"{amount:.{digits}f} {currency}"
