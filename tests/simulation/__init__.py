"""A whole cluster in one thread, in virtual time: the real masters on a model of etcd, model segments and clients, and faults."""
