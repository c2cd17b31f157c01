"""Makes the hosts of a NetworkLab and lives as long as they do: `network_lab_process.py OPTIONS`, started by network_lab.py.

OPTIONS is JSON: `hub` and `leaves` name the hosts, `private_directory` is a directory of which each host has its own. Runs in
a network namespace of its own, so that nothing of it shows in the machine's. Prints a line of JSON with each host's process
id and address, then obeys lines of stdin, `down LEAF` and `up LEAF`, and answers each with `done`. Ends with its stdin.

Each leaf has a link of its own to the hub, which routes between them: leaf number n is 10.77.n.2, the hub 10.77.n.1 there.
"""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys

from pyroute2 import IPRoute, NetNS

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None, use_errno=True)
# Keeps the namespaces of a host alive, and nothing else.
_HOLD = 'mount -t tmpfs none "$1" && echo ready && exec cat'


class Host:
    """A network namespace, with a mount namespace in which `private_directory` is empty and its own."""

    def __init__(self, private_directory: str) -> None:
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "sh", "-c", _HOLD, "sh", private_directory],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            preexec_fn=lambda: _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0),
        )
        self.pid = self._holder.pid
        assert self._holder.stdout is not None
        assert self._holder.stdout.readline() == b"ready\n", "no namespaces"

    def network(self) -> NetNS:
        return NetNS(f"/proc/{self.pid}/ns/net")

    def forward(self) -> None:
        enter = ["nsenter", "--target", str(self.pid), "--net"]
        subprocess.run([*enter, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"], check=True)


def link(number: int, hub: Host, leaf_name: str, leaf: Host) -> str:
    """Joins a leaf to the hub. The leaf's address."""
    with IPRoute() as network:
        network.link(
            "add",
            ifname=leaf_name,
            kind="veth",
            net_ns_pid=hub.pid,
            peer={"ifname": "uplink", "net_ns_pid": leaf.pid},
        )
    near, far = f"10.77.{number}.2", f"10.77.{number}.1"
    for host, interface, address in ((hub, leaf_name, far), (leaf, "uplink", near)):
        with host.network() as network:
            (index,) = network.link_lookup(ifname=interface)
            network.addr("add", index=index, address=address, prefixlen=24)
            network.link("set", index=index, state="up")
    with leaf.network() as network:
        network.route("add", dst="default", gateway=far)
    return near


def main() -> None:
    options = json.loads(sys.argv[1])
    hub = Host(options["private_directory"])
    leaves = {name: Host(options["private_directory"]) for name in options["leaves"]}
    for host in (hub, *leaves.values()):
        with host.network() as network:
            network.link("set", index=1, state="up")  # loopback
    hub.forward()
    said = {name: (leaf.pid, link(n, hub, name, leaf)) for n, (name, leaf) in enumerate(leaves.items(), 1)}
    print(json.dumps({options["hub"]: (hub.pid, "10.77.1.1"), **said}), flush=True)
    for line in sys.stdin:
        state, name = line.split()
        with hub.network() as network:
            (index,) = network.link_lookup(ifname=name)
            network.link("set", index=index, state=state)
        print("done", flush=True)


if __name__ == "__main__":
    main()
