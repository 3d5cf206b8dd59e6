"""Which addresses may be dialled: the public ones, and those that a rule lists. Pure.

What is built in holds whatever the policy says of names. An address that carries another one
inside is judged by that one where the network translates it, and refused otherwise.
"""

import ipaddress
from collections.abc import Iterable

from runner.policy.network import Address, AddressRange

_NOT_PUBLIC: tuple[tuple[str, str], ...] = (
    ("0.0.0.0/8", "this host"),
    ("10.0.0.0/8", "private"),
    ("100.64.0.0/10", "shared address space"),
    ("127.0.0.0/8", "loopback"),
    ("168.63.129.16/32", "the host of a machine at Azure"),
    ("169.254.0.0/16", "link-local, where clouds keep their metadata"),
    ("172.16.0.0/12", "private"),
    ("192.0.0.0/24", "reserved"),
    ("192.0.2.0/24", "for documentation"),
    ("192.88.99.0/24", "6to4"),
    ("192.168.0.0/16", "private"),
    ("198.18.0.0/15", "for benchmarks"),
    ("198.51.100.0/24", "for documentation"),
    ("203.0.113.0/24", "for documentation"),
    ("224.0.0.0/4", "multicast"),
    ("240.0.0.0/4", "reserved"),
    ("::/8", "reserved, or an IPv4 address in disguise"),
    ("64:ff9b:1::/48", "a local translation to IPv4"),
    ("100::/64", "discarded"),
    ("2001::/23", "for protocols, Teredo among them"),
    ("2001:db8::/32", "for documentation"),
    ("2002::/16", "6to4"),
    ("3fff::/20", "for documentation"),
    ("5f00::/16", "segment routing"),
    ("fc00::/7", "private"),
    ("fe80::/10", "link-local"),
    ("fec0::/10", "site-local"),
    ("ff00::/8", "multicast"),
)
"""Ranges with the word for each. Written out, so that it does not depend on the Python at hand."""

_RANGES = tuple((ipaddress.ip_network(text), word) for text, word in _NOT_PUBLIC)
_TRANSLATED = ipaddress.IPv6Network("64:ff9b::/96")
"""Where a network without IPv4 has its gateway to it: the last 32 bits are the address."""
_ISATAP = frozenset({0x0000_5EFE, 0x0200_5EFE})
"""The upper half of an interface's name that carries an IPv4 address in the lower."""


def plain(address: Address) -> Address:
    """The address that a packet to this one arrives at: without wrapping, where it has one."""
    if not isinstance(address, ipaddress.IPv6Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address in _TRANSLATED:
        return ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    return address


def not_public(address: Address) -> str | None:
    """Why an address is not one of the public internet, in a word or two; None where it is."""
    found = plain(address)
    for network, word in _RANGES:
        if found in network:
            return word
    if isinstance(found, ipaddress.IPv6Address) and int(found) >> 32 & 0xFFFF_FFFF in _ISATAP:
        return "an IPv4 address in disguise"
    # What a later Python knows of, such as ranges that were reserved since.
    return None if found.is_global else "not public"


def refusal(address: Address, listed: Iterable[AddressRange] = ()) -> str | None:
    """Why an address may not be dialled; None where it may.

    Args:
        address: What a name led to, or what was asked for itself.
        listed: Ranges that a rule names, public or not.
    """
    word = not_public(address)
    if word is None or is_listed(address, listed):
        return None
    return f"{address} is not a public address ({word})"


def is_listed(address: Address, listed: Iterable[AddressRange]) -> bool:
    """Whether an address is in one of these ranges, by itself or without its wrapping."""
    return any(address in network or plain(address) in network for network in listed)
