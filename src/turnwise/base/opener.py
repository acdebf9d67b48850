"""Open addresses without following redirects."""

import urllib.request
from typing import Any


class _Stay(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none: the answer is an error with its status."""


def make_opener(*, proxy: bool) -> urllib.request.OpenerDirector:
    """Make an opener; a redirect is an `HTTPError`, since another host would be sent all headers, keys among them.

    Args:
        proxy: Whether to use the proxy that the environment names.
    """
    return urllib.request.build_opener(_Stay, *([] if proxy else [urllib.request.ProxyHandler({})]))
