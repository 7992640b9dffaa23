"""A real Postgres: a folder of its own, run as an unprivileged user, on a loopback port.

`DAPO_TEST_POSTGRES_URL` names a server to use instead; its user must be allowed to create databases and roles. Tests
that stop or kill the server always start their own.
"""

import ctypes
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

import psutil
import psycopg
import pytest
from patience import patient
from psycopg import sql
from sqlalchemy.engine import make_url

from dapo_core.db import policies, upgrade
from servers.ports import free_port

OWNER: Final = "dapo"
PASSWORD: Final = "not-a-secret"
_READY_SECONDS: Final = 60
_DEBIAN: Final = Path(__file__).parents[3] / "scripts" / "debian.sh"
_LIBC = ctypes.CDLL(None, use_errno=True)
_PR_SET_PDEATHSIG = 1


class PostgresServer:
    """A server in `folder` (a temporary one). Started again, it keeps its port and its data.

    `fsync=False` is for tests that never kill it: several times faster on a slow disk.
    """

    def __init__(
        self, folder: Path | None = None, *, fsync: bool = True, settings: Mapping[str, str] | None = None
    ) -> None:
        self._own_folder = folder is None
        self.folder = folder or Path(tempfile.mkdtemp(prefix="dapo-postgres-"))
        self.data = self.folder / "data"
        self.log = self.folder / "log"
        self.port = free_port()
        self.settings = {"max_connections": "50", "shared_buffers": "64MB", **(settings or {})}
        if not fsync:
            self.settings |= {"fsync": "off", "full_page_writes": "off", "synchronous_commit": "off"}
        self._template: str | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> "PostgresServer":
        """Start it, making its data folder if it is not there, and wait until it answers."""
        if not self.data.exists():
            self._init()
        flags = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.folder),
            **self.settings,
        }
        command = [binary("postgres"), "-D", str(self.data), *(f"-c{name}={value}" for name, value in flags.items())]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, start_new_session=True, user=_user(), preexec_fn=_die_with_us
            )
        self._wait_until_ready()
        return self

    def stop(self) -> None:
        """A shutdown that ends connections at once and leaves the data whole."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            self._process.wait(patient(60))

    def kill(self) -> None:
        """SIGKILL to all its processes at once, as when its machine dies."""
        if self._process is not None and self._process.poll() is None:
            gone = self._signal(signal.SIGKILL)
            self._process.wait(patient(60))
            psutil.wait_procs(gone, 60)

    def revive(self) -> None:
        """Start it if it ended by itself, as with a full disk; else do nothing."""
        assert self._process is not None
        if self._process.poll() is not None:
            self.start()

    def put_back(self, copy: Path) -> None:
        """Put a copy of the data where they were; the server stands still meanwhile."""
        shutil.rmtree(self.data)
        shutil.move(copy, self.data)
        if (user := _user()) is not None:
            for path in (self.data, *self.data.rglob("*")):
                os.chown(path, user, -1)
        self.data.chmod(0o700)

    def pause(self) -> None:
        """SIGSTOP to all its processes: connections stay and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT after `pause`."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> list[psutil.Process]:
        """To the first process and then to those it started, each of which leads a session of its own."""
        assert self._process is not None
        first = psutil.Process(self._process.pid)
        if number != signal.SIGCONT:
            first.send_signal(signal.SIGSTOP)  # it starts no others meanwhile
        others: list[psutil.Process] = first.children(recursive=True)
        for process in (*others, first):
            with suppress(psutil.NoSuchProcess):
                process.send_signal(number)
        return others

    def close(self) -> None:
        """Kill it and remove its folder."""
        self.kill()
        if self._own_folder:
            shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, user: str = OWNER, password: str = PASSWORD) -> str:
        """The metadata URL of a database of this server."""
        return f"postgresql+psycopg://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def new_database(self, *, upgraded: bool = False) -> str:
        """The URL of a new database, empty or with this program's tables."""
        template = self._upgraded_template() if upgraded else "template0"
        return self.url(create_database(self.url("postgres"), template))

    def _upgraded_template(self) -> str:
        if self._template is None:
            template = create_database(self.url("postgres"), "template0")
            upgrade(self.url(template))
            self._template = template
        return self._template

    def _init(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        password = self.folder / "password"
        password.write_text(PASSWORD)
        self.log.touch()
        if (user := _user()) is not None:
            for path in (self.folder, password, self.log):
                os.chown(path, user, -1)
        flags = ["--auth=scram-sha-256", f"--username={OWNER}", f"--pwfile={password}", "--encoding=UTF8", "--no-sync"]
        command = [binary("initdb"), "-D", str(self.data), "--locale=C", *flags]
        made = subprocess.run(command, user=user, capture_output=True, text=True, cwd=self.folder)
        if made.returncode:
            raise RuntimeError(f"initdb failed with {made.returncode}: {made.stderr}")

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + patient(_READY_SECONDS)
        while True:
            try:
                psycopg.connect(plain(self.url("postgres")), connect_timeout=5).close()
                return
            except psycopg.OperationalError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    last = "\n".join(self.log.read_text().splitlines()[-15:])
                    raise RuntimeError(f"Postgres does not answer ({error}):\n{last}") from error
            time.sleep(0.05)


class GivenServer:
    """The server that `DAPO_TEST_POSTGRES_URL` names: new databases, as a server of the tests' own has them."""

    def __init__(self, url: str) -> None:
        self._url = make_url(url)
        self._template: str | None = None

    def url(self, database: str, user: str | None = None, password: str | None = None) -> str:
        """The metadata URL of a database of this server."""
        given = self._url.set(drivername="postgresql+psycopg", database=database)
        if user is not None:
            given = given.set(username=user, password=password)
        return given.render_as_string(hide_password=False)

    def new_database(self, *, upgraded: bool = False) -> str:
        """The URL of a new database, empty or with this program's tables."""
        maintenance = self._url.render_as_string(hide_password=False)
        if upgraded and self._template is None:
            self._template = create_database(maintenance, "template0")
            upgrade(self.url(self._template))
        return self.url(create_database(maintenance, self._template if upgraded and self._template else "template0"))


def create_database(maintenance_url: str, template: str) -> str:
    """Make a database of a name that nobody has, and return the name."""
    name = f"dapo_test_{uuid.uuid4().hex[:12]}"
    with psycopg.connect(plain(maintenance_url), autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE {}").format(sql.Identifier(name), sql.Identifier(template))
        )
    return name


def database_of_its_owner(server: "PostgresServer | GivenServer") -> str:
    """The URL of an empty database whose owner is as the chart's and managed servers have it: no superuser."""
    name = f"owner_{uuid.uuid4().hex[:8]}"
    with psycopg.connect(plain(server.url("postgres")), autocommit=True) as superuser:
        superuser.execute(f"CREATE ROLE {name} LOGIN CREATEROLE PASSWORD 'p'".encode())
        superuser.execute(f"CREATE DATABASE {name} OWNER {name}".encode())
        for group in policies.GROUPS.values():  # other tests' databases may have created them
            with suppress(psycopg.errors.DuplicateObject):
                superuser.execute(f"CREATE ROLE {group} NOLOGIN".encode())
            superuser.execute(f"GRANT {group} TO {name} WITH ADMIN OPTION".encode())
    return server.url(name, name, "p")


def plain(url: str) -> str:
    """The URL as psycopg itself takes it."""
    return url.replace("postgresql+psycopg://", "postgresql://", 1)


def binary(name: str) -> str:
    """A program of Debian's Postgres, which is installed when it is not there."""
    found = _find(name)
    if found is None:
        install("postgresql")
        found = _find(name)
    if found is None:
        raise FileNotFoundError(f"{name} was not found after installing Debian's package postgresql")
    return found


def _find(name: str) -> str | None:
    versions = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: int(path.parts[4]))
    return str(versions[-1]) if versions else shutil.which(name)


def install(package: str) -> None:
    """Install a package of Debian. Raises CalledProcessError with what is missing, where it may not be installed."""
    subprocess.run([_DEBIAN, package], check=True)


def _user() -> int | None:
    """Postgres refuses to run as root; None: as whoever runs the tests."""
    return unprivileged() if os.geteuid() == 0 else None


def unprivileged() -> int:
    """The number of a user to run servers as that refuse to run as root."""
    for name in ("postgres", "nobody"):
        try:
            return pwd.getpwnam(name).pw_uid
        except KeyError:
            continue
    raise LookupError("There is neither a user postgres nor a user nobody to run Postgres as.")


_die_with_us = partial(_LIBC.prctl, _PR_SET_PDEATHSIG, signal.SIGKILL)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer | GivenServer]:
    """One server for all tests that never stop it."""
    if given := os.environ.get("DAPO_TEST_POSTGRES_URL"):
        yield GivenServer(given)
        return
    server = PostgresServer(fsync=False).start()
    yield server
    server.close()
