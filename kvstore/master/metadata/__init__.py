"""Durable state of the master behind one interface. A store is one file here and one line in `registry`."""
