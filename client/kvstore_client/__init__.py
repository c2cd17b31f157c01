"""Client library of kvstore. Depends on nothing but its own native module."""
