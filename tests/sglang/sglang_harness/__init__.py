"""Drives SGLang's own code on a CPU: its HiCache controllers in worker processes, and whole servers."""
