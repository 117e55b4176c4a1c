"""Writes invoices.csv: 2,000 invoices of one batch, the same in every run.

    python examples/make_invoices.py > examples/invoices.csv

Customers and amounts come from SHA-256 of the invoice's number, so no random generator of any
Python version has a say in them.
"""

from hashlib import sha256

BATCH_DATE = "2026-07-19"
COUNT = 2000


def lines() -> list[str]:
    """The lines of the file, without line ends."""
    header = "invoice_id,batch_date,customer,amount_cents"
    return [header, *(_invoice(number) for number in range(1, COUNT + 1))]


def _invoice(number: int) -> str:
    digest = sha256(f"invoice {number}".encode()).digest()
    customer = int.from_bytes(digest[:4]) % 400 + 1
    # 5.00 to 2,500.00; the square makes small invoices more frequent, as they are.
    share = int.from_bytes(digest[4:8]) / 2**32
    amount_cents = 500 + int(share * share * 249_500)
    return f"{number},{BATCH_DATE},customer-{customer:03d},{amount_cents}"


if __name__ == "__main__":
    print("\n".join(lines()))
