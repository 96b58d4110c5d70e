"""A Ray cluster on this machine: a head that runs nothing, and hosts of which one can be killed."""

import json
import secrets
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from .partition import Link

SLOT = "slot"
_QUICK = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_initial_delay_ms": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "4",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
}
"""A dead host is told from a slow one in seconds."""
_TOKEN = secrets.token_hex(16)
"""One a process: Ray reads it once."""
_STORE_BYTES = 80 << 20
_JOIN_S = 120


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RayCluster:
    """Head and two hosts of two slots and two GPUs each, which are not there but are counted."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        for name, value in {**_QUICK, "RAY_AUTH_TOKEN": _TOKEN}.items():
            patch.setenv(name, value)
        self._port = free_port()
        self._cluster: Any = None
        self._earlier: list[Any] = []
        self._num_added = 0
        self.hosts: list[Any] = []
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Starts all of it, at the address that it had before."""
        from ray.cluster_utils import Cluster

        if self._cluster is not None:
            self._earlier.append(self._cluster)
        common = {"object_store_memory": _STORE_BYTES, "include_dashboard": False}
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={"gcs_server_port": self._port, "num_cpus": 0, "num_gpus": 0, **common},
        )
        self.hosts = []
        for _ in range(2):
            self.add_host()

    def add_host(self) -> None:
        """Joins a host with a folder of its own for the code.

        Ray unpacks it anew for each host that uses it, and would take it away under what runs on
        the others of this machine.
        """
        self._num_added += 1
        host = self._cluster.add_node(
            runtime_env_dir_name=f"runtime_resources_{self._num_added}",
            num_cpus=2,
            num_gpus=2,
            resources={SLOT: 2},
            object_store_memory=_STORE_BYTES,
        )
        self.hosts.append(host)

    def join(self, link: Link) -> None:
        """Starts a host on the other side of a link; it ends with what is inside."""
        head = self._cluster.head_node
        address = f"{head.node_ip_address}:{self._port}"
        ray = str(Path(sys.executable).with_name("ray"))
        words = (ray, "start", "--address", address, "--node-ip-address", link.there)
        sizes = ("--num-cpus", "2", "--num-gpus", "2", "--resources", json.dumps({SLOT: 2}),
                 "--object-store-memory", str(_STORE_BYTES))  # fmt: skip
        subprocess.run(
            link.inside(*words, *sizes), check=True, capture_output=True, timeout=_JOIN_S
        )

    def restore(self) -> "RayCluster":
        """With the hosts again that a test killed."""
        while len(self.hosts) < 2:
            self.add_host()
        return self

    def host_of(self, pid: int) -> Any:
        """The host whose raylet a process descends from."""
        parents = {parent.pid for parent in psutil.Process(pid).parents()}
        return next(host for host in self.hosts if raylet_pid(host) in parents)

    def kill_host(self, host: Any) -> None:
        """As if its plug were pulled: its raylet is gone without a word."""
        self.hosts.remove(host)
        self._cluster.remove_node(host, allow_graceful=False)

    def kill_head(self) -> None:
        """Its hosts do not know yet, and what runs on them goes on."""
        self._cluster.remove_node(self._cluster.head_node, allow_graceful=False)

    def stop(self) -> None:
        for cluster in (*self._earlier, self._cluster):
            for host in list(cluster.worker_nodes):
                cluster.remove_node(host, allow_graceful=False)
        if self._cluster.head_node is not None:
            self.kill_head()
        self.hosts = []


def raylet_pid(host: Any) -> int:
    (info,) = host.all_processes["raylet"]
    return int(info.process.pid)
