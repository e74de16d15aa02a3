"""Zips of named members: everything that a reader relies on is checked before memory is taken for it."""

from __future__ import annotations

import errno
import io
import os
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from kitsune_mlir.cache.replacing import replacing
from kitsune_mlir.errors import ArgumentError, KitsuneError, PackageError
from kitsune_mlir.runtime.plain import shown

__all__ = ["Archive", "archive_bytes", "checked_path", "readable", "write_archive"]

EXPANSION, SPARE = 300, 256 << 20
"""Members may unpack to that many times the file's size, and so many bytes more. Texts of kernels shrink to a tenth or less."""

DEFLATED_MOST = 1032
"""No data deflates to less than one byte in so many."""


LONGEST = 200
"""Characters of a reader's own message: some quote what they read."""


@contextmanager
def readable(what: str) -> Iterator[None]:
    """Whatever a reader of damaged data trips over becomes a PackageError; what the system says of a disk stays as it is.

    Args:
        what: the beginning of the message.
    """
    try:
        yield
    except (KitsuneError, MemoryError):
        raise
    except OSError as error:
        if error.errno != errno.EINVAL:  # a place outside of the file, which its directory names
            raise
        raise PackageError(f"{what}: {error.strerror}") from error
    except Exception as error:  # zipfile and JSON alone raise ten different kinds
        plain = isinstance(error, ValueError | zipfile.BadZipFile) and str(error)
        detail = plain or f"{type(error).__name__}: {error}"
        raise PackageError(f"{what}: {detail if len(detail) <= LONGEST else f'{detail[:LONGEST]}...'}") from error


def checked_path(path: str | os.PathLike[str]) -> Path:
    """What the user gave as a path.

    Raises:
        ArgumentError: it is none.
    """
    if not isinstance(path, str | os.PathLike):  # a number would be an open file of the process
        raise ArgumentError(f"a path was expected, not {shown(path)}")
    return Path(path)


class Archive:
    """An open zip.

    Args:
        source: a path, or the bytes of one.
        name: what it is called in messages, where that is not the path.

    Attributes:
        sizes: bytes of each member by name, as the zip's directory has them.

    Raises:
        OSError: the file cannot be opened (FileNotFoundError, IsADirectoryError, PermissionError) or its disk fails.
        PackageError: it is no zip, is cut short, or has members that no package has; the message says which.
    """

    def __init__(self, source: str | os.PathLike[str] | bytes, name: str | None = None):
        held = isinstance(source, bytes)
        self._path = name or ("a package" if held else checked_path(source))
        self._stream = io.BytesIO(source) if held else open(source, "rb")
        try:
            with readable(f"{self._path}: not a .kit file, or cut short"):
                self._zip = zipfile.ZipFile(self._stream)
                self._check(len(source) if held else os.fstat(self._stream.fileno()).st_size)
        except BaseException:
            self._stream.close()
            raise
        self.sizes = {info.filename: info.file_size for info in self._zip.infolist()}

    def _check(self, size: int) -> None:
        """Members are of kinds that are read here, have different names, and unpack to no more than they can."""
        seen: set[str] = set()
        total = 0
        for info in self._zip.infolist():
            member = f"{self._path}: member {shown(info.filename)}"
            if info.filename in seen:
                raise PackageError(f"{member} is there twice")
            seen.add(info.filename)
            if info.flag_bits & 0x1:
                raise PackageError(f"{member} is encrypted")
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                raise PackageError(f"{member} is compressed in a way that packages are not ({info.compress_type})")
            most = info.compress_size * (1 if info.compress_type == zipfile.ZIP_STORED else DEFLATED_MOST)
            if not 0 <= info.compress_size <= size or not 0 <= info.file_size <= most:
                raise PackageError(f"{member} is said to have {info.file_size} bytes in {info.compress_size} of {size}")
            total += info.file_size
        if total > SPARE + EXPANSION * size:
            raise PackageError(f"{self._path}: a file of {size} bytes is said to unpack to {total}")

    def read(self, name: str) -> bytes:
        """The bytes of a member.

        Raises:
            OSError: the disk fails.
            PackageError: the member is missing or damaged.
        """
        if name not in self.sizes:
            raise PackageError(f"{self._path}: member '{name}' is missing")
        with readable(f"{self._path}: member '{name}' is damaged"):
            data = self._zip.read(name)
        if len(data) != self.sizes[name]:
            raise PackageError(f"{self._path}: member '{name}' has {len(data)} bytes, and should have {self.sizes[name]}")
        return data

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._zip.close()
        self._stream.close()


def write_archive(path: str | os.PathLike[str], members: Mapping[str, bytes], stored: str, level: int | None = None) -> None:
    """Write a zip beside `path` and move it there, so that a failure leaves an older file as it was.

    Args:
        stored: the beginning of the names of members that are not compressed; nor are the others where they are so large that
            `Archive` may refuse them.
        level: of compression, 1 (fast) to 9; None is zlib's own, 6.

    Raises:
        OSError: the file cannot be written.
    """
    final = checked_path(path)
    with replacing(final) as path:
        _write(path, members, stored, level)
        path.chmod(0o644)


def archive_bytes(members: Mapping[str, bytes], stored: str, level: int | None = None) -> bytes:
    """What `write_archive` writes."""
    stream = io.BytesIO()
    _write(stream, members, stored, level)
    return stream.getvalue()


def _write(file: Path | io.BytesIO, members: Mapping[str, bytes], stored: str, level: int | None) -> None:
    texts = sum(len(data) for name, data in members.items() if not name.startswith(stored))
    with zipfile.ZipFile(file, "w", compresslevel=level) as archive:
        for name, data in members.items():
            compressed = not name.startswith(stored) and texts <= SPARE
            archive.writestr(name, data, zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED)
