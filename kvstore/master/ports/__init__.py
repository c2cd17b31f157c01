"""What others reach a master by: the framed directory port of clients, the gRPC control port of segments, masters and operators."""
