"""A small OpenID provider that lets in whoever comes, with the claims that a test gives."""

import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from joserfc import jwt
from joserfc.jwk import RSAKey

CLIENT = "dapo-dashboard"


@contextmanager
def provider(claims: Mapping[str, Any]) -> Iterator[str]:
    """The provider's address, while the block runs."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler)
    url = f"http://127.0.0.1:{server.server_port}"
    server.RequestHandlerClass = _handler(url, claims)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield url
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


def _handler(url: str, claims: Mapping[str, Any]) -> type[BaseHTTPRequestHandler]:
    key = RSAKey.generate_key(2048, {"kid": "test", "use": "sig", "alg": "RS256"}, private=True)
    nonces: dict[str, str] = {}

    def token(nonce: str) -> str:
        now = int(time.time())
        content = {"iss": url, "aud": CLIENT, "iat": now, "exp": now + 600, "nonce": nonce, **claims}
        return jwt.encode({"alg": "RS256", "kid": "test"}, content, key)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            if parts.path == "/.well-known/openid-configuration":
                self._answer(_configuration(url))
            elif parts.path == "/jwks":
                self._answer({"keys": [key.as_dict(private=False)]})
            elif parts.path == "/authorize":
                asked = {name: values[0] for name, values in parse_qs(parts.query).items()}
                code = f"code-{len(nonces)}"
                nonces[code] = asked.get("nonce", "")
                self.send_response(302)
                query = urlencode({"code": code, "state": asked["state"]})
                self.send_header("Location", f"{asked['redirect_uri']}?{query}")
                self.end_headers()
            else:
                self.send_error(404)

        def do_POST(self) -> None:
            form = parse_qs(self.rfile.read(int(self.headers["Content-Length"])).decode())
            nonce = nonces.pop(form["code"][0])
            self._answer({"access_token": "a", "token_type": "Bearer", "expires_in": 600, "id_token": token(nonce)})

        def _answer(self, content: Mapping[str, Any]) -> None:
            body = json.dumps(content).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

    return Handler


def _configuration(url: str) -> dict[str, Any]:
    return {
        "issuer": url,
        "authorization_endpoint": f"{url}/authorize",
        "token_endpoint": f"{url}/token",
        "jwks_uri": f"{url}/jwks",
        "response_types_supported": ["code"],
        "subject_types_supported": ["public"],
        "id_token_signing_alg_values_supported": ["RS256"],
        "scopes_supported": ["openid", "email", "profile"],
    }
