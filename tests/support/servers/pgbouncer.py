"""PgBouncer in transaction mode before a Postgres of the tests: Debian's package."""

import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import psycopg
from sqlalchemy.engine import make_url

from servers.ports import free_port
from servers.postgres import install, unprivileged
from servers.process import Process


class PgBouncer:
    """A pooler with two connections for each login and database. `logins` maps those who may connect to passwords."""

    def __init__(self, server_url: str, logins: Mapping[str, str]) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dapo-pgbouncer-"))
        self.port = free_port()
        server = make_url(server_url)
        users = self.folder / "users"
        users.write_text("".join(f'"{login}" "{password}"\n' for login, password in logins.items()))
        settings = self.folder / "pgbouncer.ini"
        settings.write_text(
            f"[databases]\n* = host={server.host} port={server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\nunix_socket_dir =\n"
            f"auth_type = scram-sha-256\nauth_file = {users}\n"
            "pool_mode = transaction\ndefault_pool_size = 2\nmax_client_conn = 200\n"
        )
        command = [_binary(), str(settings)]
        if os.geteuid() == 0:  # it refuses to run as root
            user = unprivileged()
            for path in (self.folder, users, settings):
                os.chown(path, user, -1)
            command = ["setpriv", f"--reuid={user}", "--clear-groups", *command]
        self._process = Process("pgbouncer", command, self.folder / "log")
        self._a_login = next(iter(logins.items()))

    def start(self) -> "PgBouncer":
        """Start it and wait until it answers."""
        self._process.start()
        self._process.wait_until(self._answers, 30)
        return self

    def close(self) -> None:
        """Stop it and remove its folder."""
        self._process.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, server_url: str, *, pooler: bool = True) -> str:
        """The same database through the pooler."""
        through = make_url(server_url).set(host="127.0.0.1", port=self.port)
        if pooler:
            through = through.update_query_dict({"pooler": "transaction"})
        return through.render_as_string(hide_password=False)

    def _answers(self) -> bool:
        try:
            user, password = self._a_login
            psycopg.connect(
                host="127.0.0.1", port=self.port, user=user, password=password, dbname="postgres", connect_timeout=5
            ).close()
        except psycopg.OperationalError:
            return False
        return True


def _binary() -> str:
    places = f"{os.environ['PATH']}:/usr/sbin"
    found = shutil.which("pgbouncer", path=places)
    if found is None:
        install("pgbouncer")
        found = shutil.which("pgbouncer", path=places)
    if found is None:
        raise FileNotFoundError("pgbouncer was not found after installing Debian's package pgbouncer")
    return found
