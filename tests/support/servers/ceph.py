"""Ceph's object gateway with the smallest cluster that it works on: one monitor, and one disk that is memory."""

import subprocess
import uuid
from typing import Final

from patience import patient

from servers.ports import free_port
from servers.process import Process
from servers.s3_server import READY_SECONDS, S3Server
from servers.tools import tool

# Without Cephx, everybody on the loopback address is the administrator. The gateway would insist on encrypted
# connections to the monitor, for which there are no keys then.
_SETTINGS: Final = """\
[global]
fsid = {fsid}
mon host = [v2:127.0.0.1:{port}]
public addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
mon data = {folder}/mon
mon cluster log file = {folder}/cluster.log
mon allow pool size one = true
mon max pg per osd = 1000
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 8589934592
osd class dir = {libraries}/rados-classes
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
plugin dir = {libraries}/ceph
erasure code dir = {libraries}/ceph/erasure-code
run dir = {folder}
admin socket =
log file = {folder}/$name.log
rgw data = {folder}
rgw frontends = beast endpoint=127.0.0.1:{gateway}
"""


class CephGateway(S3Server):
    """Ceph with its object gateway. `kill` ends the gateway only; the objects are in the rest."""

    name = "ceph"

    def __init__(self) -> None:
        self._monitor_port = free_port()
        self._cluster: list[Process] = []
        super().__init__()

    def command(self) -> list[str]:
        return self._program("radosgw", "--foreground")

    def start(self) -> None:
        if not self._cluster:
            self._start_cluster()
        super().start()

    def close(self) -> None:
        super().close()
        for process in self._cluster:
            process.kill()

    def _start_cluster(self) -> None:
        libraries = next((tool("ceph").parent / "root/usr/lib").glob("*/rados-classes")).parent
        fsid, settings = str(uuid.uuid4()), self.folder / "ceph.conf"
        settings.write_text(
            _SETTINGS.format(
                fsid=fsid, port=self._monitor_port, folder=self.folder, libraries=libraries, gateway=self.port
            )
        )
        (self.folder / "osd").mkdir()
        monitors = str(self.folder / "monitors")
        address = f"[v2:127.0.0.1:{self._monitor_port}]"
        self._do("monmaptool", "--create", "--fsid", fsid, "--addv", "a", address, monitors)
        self._do("ceph-mon", "--id", "a", "--mkfs", "--monmap", monitors)
        self._serve("ceph-mon", "--id", "a", "--foreground")
        self._do("ceph-osd", "--id", "0", "--mkfs", "--osd-uuid", str(uuid.uuid4()))
        self._serve("ceph-osd", "--id", "0", "--foreground")
        # Returns once the disk serves what it writes.
        keys = ["--access-key", self.keys[0], "--secret-key", self.keys[1]]
        self._do("radosgw-admin", "user", "create", "--uid", "dapo", "--display-name", "dapo", *keys)

    def _program(self, name: str, *arguments: str) -> list[str]:
        settings = [] if name == "monmaptool" else ["--conf", str(self.folder / "ceph.conf")]
        return [str(tool("ceph")), name, *settings, *arguments]

    def _serve(self, name: str, *arguments: str) -> None:
        process = Process(name, self._program(name, *arguments), self.folder / f"{name}.out")
        process.start()
        self._cluster.append(process)

    def _do(self, name: str, *arguments: str) -> None:
        """Run a program to its end. Raises subprocess.CalledProcessError, or TimeoutExpired."""
        command, seconds = self._program(name, *arguments), patient(READY_SECONDS)
        with (self.folder / f"{name}.out").open("wb") as output:
            subprocess.run(command, stdout=output, stderr=output, timeout=seconds, check=True)
