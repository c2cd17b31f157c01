"""The environment variables that Kubernetes makes beside ours.

For a Service of the name kvstore-segment every pod of its namespace gets KVSTORE_SEGMENT_SERVICE_HOST,
KVSTORE_SEGMENT_PORT=tcp://10.0.0.1:7450, KVSTORE_SEGMENT_PORT_7450_TCP_ADDR, ... unless enableServiceLinks is false.
"""

import re

_NAME = re.compile(r"_SERVICE_(HOST|PORT(_[A-Z0-9_]+)?)$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$")
_VALUE = re.compile(r"(tcp|udp|sctp)://")


def is_service_link(name: str, value: str) -> bool:
    """Whether Kubernetes made this variable, and not somebody who meant a setting."""
    return bool(_NAME.search(name) or (name.endswith("_PORT") and _VALUE.match(value)))
