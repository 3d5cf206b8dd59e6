"""Which addresses may be dialled: none by which a name could lead back to us."""

import ipaddress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from runner.egress.addresses import not_public, refusal


@pytest.mark.parametrize(
    "address",
    [
        *("0.0.0.0", "0.1.2.3", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254"),
        *("168.63.129.16", "169.254.169.254", "172.16.0.1", "172.31.255.255", "192.0.0.8"),
        *("192.168.1.1", "198.18.0.1", "224.0.0.1", "255.255.255.255", "192.88.99.1"),
        *("::", "::1", "::7f00:1", "::ffff:127.0.0.1", "::ffff:0:127.0.0.1", "fe80::1", "fec0::1"),
        *("fd00:ec2::254", "fc00::1", "ff02::1", "64:ff9b::127.0.0.1", "64:ff9b::10.0.0.1"),
        *("64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1", "2001:0:1::1", "2001:db8::1"),
        *("2606:2800::5efe:10.0.0.1", "2606:2800::200:5efe:10.0.0.1", "100::1", "3fff::1"),
    ],
)
def test_what_is_not_public_is_refused(address: str) -> None:
    assert refusal(ipaddress.ip_address(address)) is not None


@pytest.mark.parametrize(
    "address",
    [
        *("1.1.1.1", "93.184.216.34", "172.32.0.1", "100.128.0.1", "192.0.1.1"),
        *("2606:2800:220:1:248:1893:25c8:1946", "2a00::1", "64:ff9b::8.8.8.8", "::ffff:8.8.8.8"),
    ],
)
def test_what_is_public_is_not(address: str) -> None:
    assert refusal(ipaddress.ip_address(address)) is None


def test_what_a_rule_lists_may_be_dialled() -> None:
    listed = [ipaddress.ip_network("10.1.0.0/16"), ipaddress.ip_network("::1/128")]

    assert refusal(ipaddress.ip_address("10.1.2.3"), listed) is None
    assert refusal(ipaddress.ip_address("::ffff:10.1.2.3"), listed) is None
    assert refusal(ipaddress.ip_address("::1"), listed) is None
    assert refusal(ipaddress.ip_address("10.2.2.3"), listed) is not None


@settings(max_examples=200, deadline=None)
@given(st.ip_addresses(v=4))
def test_an_address_in_another_is_judged_like_itself_or_worse(
    address: ipaddress.IPv4Address,
) -> None:
    number = int(address)
    wrapped = [
        ipaddress.IPv6Address(0xFFFF << 32 | number),
        ipaddress.IPv6Address(0x64FF9B << 96 | number),
    ]
    for one in wrapped:
        assert (not_public(one) is None) == (not_public(address) is None)
    for inside in (0x2002 << 112 | number << 80, 0x2001 << 112 | number, number):
        assert not_public(ipaddress.IPv6Address(inside)) is not None


@settings(max_examples=200, deadline=None)
@given(st.ip_addresses())
def test_nothing_is_public_that_python_takes_for_special(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if not_public(address) is None:
        plain = getattr(address, "ipv4_mapped", None) or address
        assert plain.is_global
        assert not plain.is_multicast
