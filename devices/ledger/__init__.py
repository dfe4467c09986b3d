"""The ledger: one set of books of cards, tenants, reservations and costs for both services.

`values` says what stands in them, `nodes` and `costs` keep nodes and namespaces, `ledger` pods and what they hold.
"""

from devices.ledger.ledger import Ledger
from devices.ledger.reading import decode_allocation
from devices.ledger.values import ADMITTED, PLACED, QUOTA_COUNTS, Charged, Holding, Phase, Reservation

__all__ = [
    "ADMITTED",
    "PLACED",
    "QUOTA_COUNTS",
    "Charged",
    "Holding",
    "Ledger",
    "Phase",
    "Reservation",
    "decode_allocation",
]
