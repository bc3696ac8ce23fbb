import os
import unittest

from shop import price


class PriceTest(unittest.TestCase):
    def test_price_has_amount_and_currency(self):
        currency = os.environ.get("CURRENCY", "EUR")
        digits = int(os.environ.get("ROUNDING", "2"))
        expected = {0: "12", 2: "12.40"}[digits]
        self.assertEqual(price(12.4, currency, digits), f"{expected} {currency}")

    def test_negative_price_is_rejected(self):
        with self.assertRaises(ValueError):
            price(-1, "EUR", 2)


if __name__ == "__main__":
    unittest.main()
