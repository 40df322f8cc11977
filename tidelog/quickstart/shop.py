"""The sample app of a quickstart: a shop whose worker bills orders. It runs like an app of yours:

    export TIDELOG_URL=redis://localhost:6379
    tidelog app status tidelog.quickstart.shop:app
    tidelog send tidelog.quickstart.shop:orders '{"id": 1, "customer": "ann", "bank": "Nordbank", "lines": []}'

Some orders fail, so that the queue ``orders.dead`` has dead letters of two kinds:

    BankError           Fjordbank does not answer in the first seconds of every five minutes; a replay succeeds
    ZeroDivisionError   an order with 0 installments; a replay fails again, because this program has a bug
"""

from __future__ import annotations

import asyncio
import os
from time import monotonic
from typing import Final

import msgspec

from tidelog.topics.failureactions import DeadLetter, Retry
from tidelog.transport.access import DEFAULT_URL
from tidelog.workers import App, Event

RETAINED: Final = 50_000  # records of a partition, at most
OUTAGE_EVERY: Final = 300.0  # s
OUTAGE: Final = 4.0  # s that each outage lasts


class Line(msgspec.Struct):
    """One position of an order."""

    item: str
    quantity: int
    price: float  # of one, in euros


class Order(msgspec.Struct):
    """An order of a customer."""

    id: int
    customer: str
    bank: str
    lines: list[Line]
    installments: int = 1
    gift: bool = False
    note: str = ""


class Invoice(msgspec.Struct):
    """The bill for an order."""

    order: int
    customer: str
    total: float  # euros
    installment: float  # euros


app = App("shop", url=os.environ.get("TIDELOG_URL", DEFAULT_URL), lease=5, grace=10)
orders = app.topic("orders", Order, partition_by="customer", partitions=4, partition_size=RETAINED)
invoices = app.topic("invoices", Invoice, partition_by="customer", partitions=4, partition_size=RETAINED)


class BankError(Exception):
    """A bank does not accept a payment."""


class Bank:
    """A simulated bank. ``fails``: it has outages."""

    def __init__(self, name: str, fails: bool = False) -> None:
        self.name = name
        self._fails = fails
        self._begun = 0.0  # monotonic: the first payment

    async def charge(self, customer: str, amount: float) -> None:
        """Charge the customer. Raises BankError."""
        await asyncio.sleep(0.01)  # the network
        now = monotonic()
        self._begun = self._begun or now
        if self._fails and (now - self._begun) % OUTAGE_EVERY < OUTAGE:
            raise BankError(f"{self.name} did not answer: 503 Service Unavailable ({customer}, {amount:.2f} EUR)")


BANKS: Final = {bank.name: bank for bank in (Bank("Nordbank"), Bank("Fjordbank", fails=True), Bank("Citizens"))}


@app.each(orders, ordering="key", concurrency=20, on_error=[Retry(2, first=0.3), DeadLetter()])
async def bill(event: Event[Order]) -> None:
    """Charge the customer and send the invoice."""
    order = event.record
    invoice = invoice_for(order)
    await BANKS[order.bank].charge(order.customer, invoice.installment)
    await invoices.send(invoice)


def invoice_for(order: Order) -> Invoice:
    """Return the invoice for an order."""
    total = sum(line.quantity * line.price for line in order.lines)
    return Invoice(order.id, order.customer, round(total, 2), round(total / order.installments, 2))
