"""The directory: which page lives on which segment; membership, placement, namespaces, durable in a metadata
store."""
