"""The `kvstore` command."""

import os

# Before gRPC is loaded. Its own resolver asks name servers for what /etc/hosts has, too, and waits for them when they are away;
# the system's is the one that clients use.
os.environ.setdefault("GRPC_DNS_RESOLVER", "native")
