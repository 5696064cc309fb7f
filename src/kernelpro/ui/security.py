"""Access control: hosts, origins, the token, and headers that make the browser enforce the same rules.

1. On a loopback address, the server accepts only requests for a loopback name. This rejects a page of another
   site that resolves its own name to 127.0.0.1 (DNS rebinding).
2. The server rejects requests that a browser marks as coming from another site or origin, except links to
   pages.
3. Every write needs the token. On other than loopback addresses, every request needs it.
4. The address with the token sets a cookie and redirects to the address without the token. Scripts cannot
   read the cookie, and other sites cannot send it.
"""

from __future__ import annotations

import hmac
import ipaddress
from dataclasses import dataclass
from http.cookies import SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
_YEAR = 365 * 24 * 3600


def is_loopback(host: str) -> bool:
    """Whether a host name or address can only mean this machine."""
    if host.lower().rstrip(".") == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _follows_link(scope: Scope, headers: Headers) -> bool:
    """Whether the user follows a link from another site to a page. The other site cannot read the answer."""
    is_navigation = (
        headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"
    )
    return is_navigation and scope["method"] == "GET" and not scope["path"].startswith("/api/")


@dataclass(frozen=True)
class Access:
    """Checks requests before the application sees them; an ASGI middleware."""

    app: ASGIApp
    token: str
    loopback: bool
    """Whether the server is bound to a loopback address."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scope["authorized"] = self._is_authorized(scope, headers)
        answer = self._login(scope) or self._reject(scope, headers)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                sent = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    sent[name] = value
                if "cache-control" not in sent:
                    sent["cache-control"] = "no-store"
            await send(message)

        await (answer or self.app)(scope, receive, send_with_headers)

    def _reject(self, scope: Scope, headers: Headers) -> Response | None:
        """The answer that rejects a request; None if the request is allowed."""
        host = headers.get("host", "")
        if self.loopback and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            return PlainTextResponse("this server accepts requests for localhost only\n", 421)
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin") and not _follows_link(
            scope, headers
        ):
            return PlainTextResponse("requests from other sites are rejected\n", 403)
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return PlainTextResponse("requests from other origins are rejected\n", 403)
        is_write = scope["method"] not in ("GET", "HEAD")
        if is_write and headers.get("content-type", "").partition(";")[0] != "application/json":
            return PlainTextResponse("the content type must be application/json\n", 415)
        if (is_write or not self.loopback) and not scope["authorized"]:
            return PlainTextResponse("open the address with the token that `kernelpro ui` printed\n", 401)
        return None

    def _cookie_name(self, scope: Scope) -> str:
        """The cookie's name. It includes the port, because all ports of a host share their cookies."""
        return f"kernelpro_{(scope.get('server') or ('', 0))[1]}"

    def _is_authorized(self, scope: Scope, headers: Headers) -> bool:
        cookies = SimpleCookie()
        try:
            cookies.load(headers.get("cookie", ""))
        except Exception:  # another program sent a malformed header
            return False
        cookie = cookies.get(self._cookie_name(scope))
        given = headers.get("authorization", "").removeprefix("Bearer ") or (cookie.value if cookie else "")
        return hmac.compare_digest(given.encode(), self.token.encode())

    def _login(self, scope: Scope) -> Response | None:
        """The answer to an address with a token: set the cookie, and redirect to the address without it."""
        query = QueryParams(scope["query_string"])
        if scope["method"] != "GET" or "token" not in query:
            return None
        if not hmac.compare_digest(query["token"].encode(), self.token.encode()):
            return PlainTextResponse("wrong token: it changes with every start of `kernelpro ui`\n", 401)
        host = Headers(scope=scope).get("host", "")
        if self.loopback and not is_loopback(urlsplit(f"//{host}").hostname or ""):
            return PlainTextResponse("this server accepts requests for localhost only\n", 421)
        response = RedirectResponse(scope["path"], 303)
        response.set_cookie(
            self._cookie_name(scope), self.token, max_age=_YEAR, path="/", httponly=True, samesite="strict"
        )
        return response
