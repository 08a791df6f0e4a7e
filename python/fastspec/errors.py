"""The exceptions of fastspec. Must not import the extension module, which asks this one for its classes."""

from __future__ import annotations


class FastSpecError(RuntimeError):
    """Base of every error the engine raises.

    The message names the file, tensor, field or option at fault and the values seen.

    Attributes:
        code: kind of the error: "invalid_argument", "not_found", "invalid_file", "unsupported", "out_of_memory",
            "device_failure" or "internal".
    """

    code = "internal"


class InvalidArgumentError(FastSpecError, ValueError):
    """An option, request or call that cannot be honoured."""

    code = "invalid_argument"


class NotFoundError(FastSpecError, FileNotFoundError):
    """A file, tensor or model that should be there and is not."""

    code = "not_found"


class InvalidFileError(FastSpecError, ValueError):
    """A file that is truncated, malformed or contradicts itself."""

    code = "invalid_file"


class UnsupportedError(FastSpecError):
    """Well formed, but something this build does not do."""

    code = "unsupported"


class OutOfMemoryError(FastSpecError, MemoryError):
    """A memory budget that cannot hold what was asked for."""

    code = "out_of_memory"


class DeviceFailureError(FastSpecError):
    """The device failed; the engine refuses every later call."""

    code = "device_failure"


_CLASSES: dict[str, type[FastSpecError]] = {
    cls.code: cls
    for cls in (
        FastSpecError,
        InvalidArgumentError,
        NotFoundError,
        InvalidFileError,
        UnsupportedError,
        OutOfMemoryError,
        DeviceFailureError,
    )
}


def error_from_code(code: str, message: str) -> FastSpecError:
    """The exception for an error code of the engine."""
    return _CLASSES.get(code, FastSpecError)(message)
