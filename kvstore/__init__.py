"""Server side of kvstore: master, segment servers, operator CLI. Importing it needs no dependency; its parts do."""

__version__ = "0.1.0"
