"""Who sent a request, when proxies stand between: forwarded addresses are believed from trusted proxies alone.

Used for what is logged and counted by address, and for nothing else: no URL is built from a header, and no address
opens a door. Pure.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
MAX_HOPS: Final = 16
"""Of a chain of forwarded addresses, as many as are looked at, from its end."""


class TrustedProxies:
    """The proxies whose word is taken.

    >>> trusted = TrustedProxies(["10.0.0.0/8"])
    >>> trusted.client_of("10.0.0.1", ["6.6.6.6, 203.0.113.9, 10.1.1.1"])
    '203.0.113.9'
    >>> trusted.client_of("192.0.2.1", ["203.0.113.9"])
    '192.0.2.1'
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._networks = tuple(network_of(name) for name in names)

    def trusts(self, peer: str) -> bool:
        """Whether this is one of them."""
        if not self._networks:
            return False
        address = address_of(peer)
        return address is not None and any(address in network for network in self._networks)

    def client_of(self, peer: str, forwarded_for: Sequence[str]) -> str:
        """The nearest address that is no trusted proxy's; each of them has appended whom it heard from.

        What stands further left was written by that client, who may write anything. A hop that is no address ends the
        search at the proxy that wrote it.
        """
        found = peer
        for hop in reversed(",".join(forwarded_for).rsplit(",", MAX_HOPS)[-MAX_HOPS:]):
            if not self.trusts(found):
                break
            address = address_of(hop)
            if address is None:
                break
            found = str(address)
        return found


def network_of(name: str) -> Network:
    """An address or a CIDR block; raises `ValueError`."""
    return ipaddress.ip_network(name.strip(), strict=False)


def address_of(text: str) -> Address | None:
    """An address as proxies write it, with a port or without; an IPv4 address inside an IPv6 one is itself.

    >>> [str(address_of(text)) for text in ("192.0.2.1:80", "[2001:db8::1]:80", "::ffff:192.0.2.1", "unknown")]
    ['192.0.2.1', '2001:db8::1', '192.0.2.1', 'None']
    """
    bare = text.strip().strip('"')
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
