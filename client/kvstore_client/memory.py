"""Where the values of a batch lie: raw pointers, buffers and tensors, borrowed for the length of one call."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from typing import Any

from kvstore_client._native import Pieces
from kvstore_client.protocol import OBJECT_BYTES_MAX

_PYBUF_SIMPLE = 0
_PYBUF_WRITABLE = 1


class _PyBuffer(ctypes.Structure):
    """CPython's Py_buffer: the only way to the address of a *read-only* buffer without a copy or a
    dependency.
    """

    _fields_ = [
        ("buf", ctypes.c_void_p),
        ("obj", ctypes.py_object),
        ("len", ctypes.c_ssize_t),
        ("itemsize", ctypes.c_ssize_t),
        ("readonly", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("format", ctypes.c_char_p),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),
        ("suboffsets", ctypes.c_void_p),
        ("internal", ctypes.c_void_p),
    ]


_get_buffer = ctypes.pythonapi.PyObject_GetBuffer
_get_buffer.argtypes = [ctypes.py_object, ctypes.POINTER(_PyBuffer), ctypes.c_int]
_get_buffer.restype = ctypes.c_int
_release_buffer = ctypes.pythonapi.PyBuffer_Release
_release_buffer.argtypes = [ctypes.POINTER(_PyBuffer)]
_release_buffer.restype = None


class BorrowedMemory:
    """The memory of a batch's entries, one value an entry. A context manager: the buffers are held until it
    exits.

    A value is `(address, size_bytes)`, an object with the buffer protocol (C-contiguous), or a CPU tensor
    (known by `data_ptr`). Addresses are trusted: the caller keeps that memory alive and in place. TypeError,
    ValueError or BufferError for anything else, and for what no object can be: nothing, or more than 1 GiB.
    """

    def __init__(self, values: Sequence[Any], *, writable: bool) -> None:
        self._held: list[_PyBuffer] = []
        plain = Pieces.from_tuples(values)
        if plain is not None:
            self.pieces = plain
            return
        addresses, sizes = array("Q"), array("Q")
        try:
            for value in values:
                address, size = self._locate(value, writable)
                if not 0 < size <= OBJECT_BYTES_MAX:
                    raise ValueError(f"a value has 1..{OBJECT_BYTES_MAX} bytes, this one has {size}")
                addresses.append(address)
                sizes.append(size)
            self.pieces = Pieces.from_pointers(addresses, sizes, 1)
        except BaseException:
            self.release()
            raise

    def __enter__(self) -> Pieces:
        return self.pieces

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        """Lets the buffers go. Idempotent."""
        while self._held:
            _release_buffer(ctypes.byref(self._held.pop()))

    def _locate(self, value: Any, writable: bool) -> tuple[int, int]:
        if isinstance(value, tuple):
            address, size = value
            if not isinstance(address, int) or not isinstance(size, int) or address <= 0 or size < 0:
                raise ValueError(f"a raw pointer is (address, size_bytes), not {value!r}")
            return address, size
        if hasattr(value, "data_ptr"):
            return _locate_tensor(value)
        view = _PyBuffer()
        _get_buffer(
            value, ctypes.byref(view), _PYBUF_WRITABLE if writable else _PYBUF_SIMPLE
        )  # raises by itself
        self._held.append(view)
        return view.buf or 0, view.len


def _locate_tensor(tensor: Any) -> tuple[int, int]:
    if not tensor.is_contiguous():
        raise ValueError("a tensor must be contiguous; call .contiguous() first")
    device = getattr(tensor, "device", None)
    if device is not None and getattr(device, "type", "cpu") != "cpu":
        raise ValueError(f"a tensor must be in host memory, this one is on {device}; call .cpu() first")
    return tensor.data_ptr(), tensor.numel() * tensor.element_size()
