"""Tell whether an address, or a request's Host, is this machine's own."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def is_loopback(address: str) -> bool:
    """Return whether an address reaches this machine only."""
    return address in LOOPBACK


def names_loopback(host: str) -> bool:
    """Return whether the Host header of a request, with or without port, names this machine.

    Another site's name could resolve to the loopback address (DNS rebinding), so a local server checks it.
    """
    return is_loopback(host.rsplit(":", 1)[0].strip("[]"))
