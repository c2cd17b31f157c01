#!/usr/bin/env python3
"""Docker's HEALTHCHECK: 0 when the server of this container answers on its status port, 1 with the reason otherwise.

Looks at KVSTORE_HEALTH_PORTS (by default the status ports of a master and of a segment); the first that answers is the
server's. Kubernetes does not use it: the manifests have probes of their own.
"""

from __future__ import annotations

import http.client
import os
import sys

TIMEOUT_S = 2.0
DEFAULT_PORTS = "7442,7451"


def check(port: int) -> str:
    """Empty when `/healthz` on `port` of this container says 200, otherwise why not."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as error:
        return f"{port}: {error}"
    finally:
        connection.close()
    return "" if status == http.client.OK else f"{port}: HTTP {status}"


def main() -> int:
    """The exit code."""
    ports = os.environ.get("KVSTORE_HEALTH_PORTS", DEFAULT_PORTS)
    reasons = []
    for port in ports.split(","):
        reason = check(int(port))
        if not reason:
            return 0
        reasons.append(reason)
    print("; ".join(reasons), file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
