"""Made-up invoices as texts, each with the fields that it states. Some state a field clearly, others do not."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from datetime import date, timedelta

from pydantic import BaseModel

from calibrate import Question

__all__ = ["Invoice", "invoices"]

SUPPLIERS = ("Nordlicht Optik", "Baker & Sons", "Atelier Roux", "Kappa Logistics", "Moss Garden Supplies", "Teo Rossi")
BUYERS = ("Halden Ltd", "City Library", "Ines Costa", "Orchard School", "Weber Bau GmbH", "Lindqvist AB")


class Invoice(BaseModel):
    """An invoice."""

    number: str
    date: str
    """ISO 8601."""
    buyer: str
    net: float
    total: float
    due: str | None = None
    """ISO 8601; left out if the invoice does not say."""


def invoices(n: int, *, seed: int, prefix: str) -> list[Question]:
    """Return invoices as questions whose reference is the JSON of their fields.

    Args:
        n: How many.
        seed: Equal seeds give equal invoices.
        prefix: Begin of their ids.
    """
    dice = random.Random(seed)
    made = []
    for i in range(n):
        text, fields = _invoice(dice)
        reference = json.dumps(fields.model_dump(mode="json", exclude_none=True))
        made.append(Question(id=f"{prefix}-{i}", question=text, references=(reference,)))
    return made


def _invoice(dice: random.Random) -> tuple[str, Invoice]:
    day = date(2026, 1, 1) + timedelta(days=dice.randrange(300))
    net = round(dice.uniform(20, 900), 2)
    total = round(net * dice.choice((1.07, 1.19, 1.2)), 2)
    due = day + timedelta(days=dice.choice((14, 30)))
    invoice = Invoice(
        number=f"{dice.choice('ABRX')}-{dice.randrange(1000, 9999)}",
        date=day.isoformat(),
        buyer=dice.choice(BUYERS),
        net=net,
        total=total,
        due=due.isoformat() if dice.random() < 0.7 else None,
    )
    return "\n".join(_lines(dice, invoice, day)), invoice


def _lines(dice: random.Random, invoice: Invoice, day: date) -> Sequence[str]:
    """The text. One field in seven is stated unclearly: beside another value that it could be."""
    supplier = dice.choice(SUPPLIERS)
    other = (day - timedelta(days=dice.randrange(2, 20))).isoformat()
    later = (day + timedelta(days=45)).isoformat()

    def either(clear: Sequence[str], unclear: Sequence[str], rate: float) -> Sequence[str]:
        return unclear if dice.random() < rate else clear

    lines = [
        supplier,
        *either([f"Invoice number: {invoice.number}"], [f"Ref. {invoice.number} / order {dice.randrange(10**4)}"], 0.1),
        *either([f"Invoice date: {invoice.date}"], [f"Delivered {other}", f"Printed {invoice.date}"], 0.18),
        *either([f"Bill to: {invoice.buyer}"], [f"Ship to: {dice.choice(BUYERS)}", f"c/o {invoice.buyer}"], 0.12),
        *either([f"Net: {invoice.net:.2f}"], [f"Goods {invoice.net:.2f}", f"Freight {dice.uniform(5, 20):.2f}"], 0.12),
        *either([f"Total: {invoice.total:.2f}"], [f"Sum {invoice.total:.2f} (was {invoice.total + 9:.2f})"], 0.12),
    ]
    if invoice.due is not None:
        lines += either([f"Due: {invoice.due}"], [f"Reminder {later}, otherwise {invoice.due}"], 0.25)
    elif dice.random() < 0.3:
        lines.append(f"Next delivery: {later}")
    return lines
