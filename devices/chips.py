"""Families with a vendor for each chip: the names that follow from the word for the chip, which is the vendor's key."""

from dataclasses import replace

from devices.vendor import Vendor

__all__ = ["named_after_chip"]


def named_after_chip(vendor: Vendor) -> Vendor:
    """The vendor with allocation pair, handshake, UUID lists and node lock of a chip, e.g. `hami.io/BI-V150-devices-allocated`."""
    word = vendor.key
    return replace(
        vendor,
        allocated=f"hami.io/{word}-devices-allocated",
        to_allocate=f"hami.io/{word}-devices-to-allocate",
        handshake=f"hami.io/node-handshake-{word}",
        uuid_keys=((f"hami.io/use-{word}-uuid", f"hami.io/no-use-{word}-uuid"),),
        node_lock="hami.io/mutex.lock",
    )
