"""The directory of a cluster: which page lies on which segment.

    state/     what is decided, without IO: events in, effects out
    ports/     what others reach it by: clients, segments, other masters, operators
    metadata/  where it is durable
    ha/        several masters: following, and leading while elected

`server` puts them together, `directory` carries out what the state machine wants, `recovery` reads it back.
"""
