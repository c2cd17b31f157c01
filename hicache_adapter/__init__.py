"""SGLang HiCache storage backend (`--hicache-storage-backend dynamic`) on top of kvstore_client."""
