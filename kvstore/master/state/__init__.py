"""The master's state machine and what it is made of: no IO, no clock, no tasks (tests/unit/master/test_rooms.py).

`directory_state` takes events and returns effects; what is decided about segments, their logs and namespaces lies beside it.
"""
