"""Runs a command in a network namespace of its own and prints, as JSON, its exit code and every packet it sent.

A process of its own, started under `unshare --net`. The namespace has one device, its loopback, and a default
route over it: whoever looks up a name or opens a connection finds nobody, and is seen.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path

_ALL = 3  # ETH_P_ALL
_IPV6, _HOP_BY_HOP, _ICMPV6 = 0x86DD, 0, 58


def main(log: str, *command: str) -> None:
    """Set the namespace up, run the command with its output in ``log``, and report."""
    for line in ("link set lo up", "addr add 192.0.2.1/24 dev lo", "route add default dev lo"):
        subprocess.run(["ip", *line.split()], check=True)
    with socket.socket(socket.AF_PACKET, socket.SOCK_DGRAM, socket.htons(_ALL)) as watch:
        watch.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 24)
        with Path(log).open("wb") as output:
            code = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, check=False).returncode
        watch.setblocking(False)
        packets = []
        while True:
            try:
                content, (device, protocol, *_) = watch.recvfrom(65536)
            except BlockingIOError:
                break
            if protocol == _IPV6 and content[6] in (_HOP_BY_HOP, _ICMPV6):
                continue  # the kernel's own: it looks for neighbours and routers on every new link
            packets.append(f"{device} {protocol:#06x} {content[:60].hex()}")
    print(json.dumps({"code": code, "packets": packets}))


if __name__ == "__main__":
    main(*sys.argv[1:])
