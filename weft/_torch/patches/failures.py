"""Patches of torch's ``internal``: how an exception of a remote function reaches its caller."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import sys
import traceback
from types import TracebackType
from typing import Any

import torch
from torch import futures
from torch.distributed.rpc import api, internal

from weft import _C
from weft._torch.patches.patch import Function, patch
from weft._torch.patches.unpickler import unpickler_class
from weft._torch.printable import printable
from weft.errors import RemoteError

_WITHOUT = "What a remote function raises over Weft has torch's text, which escapes letters."


@patch(
    "torch.distributed.rpc.internal:_run_function",
    "(python_udf)",
    without=_WITHOUT,
)
def run_function(upstream: Function, python_udf: Any) -> Any:
    """Names the function, and leaves out the frames that call it and torch's second text."""
    if not _C._weft_is_current():
        return upstream(python_udf)
    try:
        if not isinstance(python_udf, internal.PythonUDF):
            raise _no_call(python_udf)
        result = python_udf.func(*python_udf.args, **python_udf.kwargs)
    except BaseException as error:
        own = error.__traceback__ and error.__traceback__.tb_next
        return _failure(getattr(python_udf, "func", None), error, own)
    if hasattr(python_udf.func, "_wrapped_async_rpc_function"):
        return _future_of(python_udf.func, result)
    return result


def _no_call(value: Any) -> RemoteError:
    """What is wrong with a request that is no call. What a peer made is not formatted."""
    if not _names_nothing_here(value):
        return RemoteError(
            f"the request is no call of a function, but a {type(value).__qualname__}"
        )
    error = RemoteError(str(value))  # the function is not here: that is no failure of its own
    error.__cause__ = value.__cause__
    return error


def _names_nothing_here(value: Any) -> bool:
    """Whether this is torch's AttributeError for a name that is not found, and not a peer's own.

    Its cause was raised in this process: a pickle holds no traceback.
    """
    cause = value.__cause__ if isinstance(value, AttributeError) else None
    return cause is not None and cause.__traceback__ is not None


def _future_of(function: Any, result: Any) -> Any:
    """What torch waits for after an ``async_execution`` function: a future that fails as it should.

    A future that ``set_exception`` ended has for C++ the exception as its value. Only Python's
    class has that function; the futures that RPC and ``then`` return fail by themselves.
    """
    if isinstance(result, futures.Future):
        return result.then(functools.partial(_outcome, function))
    if isinstance(result, torch._C.Future):
        return result
    kind = type(result)
    return _failure(
        function,
        RuntimeError(  # torch's type and words
            "Functions decorated with @rpc.async_function must return a torch.futures.Future "
            f"object, but got {kind.__module__}.{kind.__qualname__}"
        ),
    )


def _outcome(function: Any, done: futures.Future) -> Any:
    try:
        return done.wait()
    except Exception as error:
        # The frames that wait have the future, whose value the exception may be: no collector sees
        # that circle, because it goes through C++.
        own = error.__traceback__
        while own is not None and _waits(own.tb_frame.f_globals.get("__name__", "")):
            own = own.tb_next
        return _failure(function, error.with_traceback(own), own)


def _waits(module: str) -> bool:
    return module == futures.__name__ or module.startswith("weft._torch.")


def _failure(
    function: Any, error: BaseException, own: TracebackType | None = None
) -> internal.RemoteException:
    """What the caller gets instead of a result, with the frames ``own``. It is printed here, too.

    SystemExit and the like are for the thread that raises them: their caller gets a RemoteError.
    """
    kind = getattr(type(error), "_weft_origin", type(error))
    return _told(kind, f"{_name(function)} raised {kind.__name__}\n\n{_traceback_text(error, own)}")


def result_failure(result: Any, error: Exception) -> internal.RemoteException:
    """What the caller gets instead of a result that cannot be pickled. It is printed here, too."""
    kind, found = type(error), type(result)
    what = f"the result, of type {found.__module__}.{found.__qualname__}, cannot be sent"
    return _told(kind, f"{what}: {kind.__name__}: {error}")


def _told(kind: type[BaseException], what: str) -> internal.RemoteException:
    text = f"On {api._get_current_rpc_agent().get_worker_info()}:\n{what}"
    # What a peer has in it looks neither like a line of the log nor controls the terminal.
    print(printable(text).replace("\n", "\n    "), file=sys.stderr)
    sent = issubclass(kind, Exception) and _can_be_sent(kind)
    return internal.RemoteException(text, kind if sent else RemoteError)


def _name(function: Any) -> str:
    module = getattr(function, "__module__", None)
    name = getattr(function, "__qualname__", None)
    return f"{module}.{name}" if name else "the call"


def _traceback_text(error: BaseException, own: TracebackType | None) -> str:
    return "".join(traceback.format_exception(type(error), error, own)).rstrip("\n")


def _can_be_sent(kind: type[Exception]) -> bool:
    """Whether a pickle can name the type."""
    try:
        pickle.dumps(kind)
    except Exception:
        return False
    return True


@patch(
    "torch.distributed.rpc.internal:_internal_rpc_pickler.deserialize",
    "(binary_data, tensor_table)",
    without="A remote exception whose type is unknown here loses its text.",
)
def deserialize(upstream: Function, binary_data: bytes, tensor_table: Any) -> Any:
    """Reads the failure of a remote function whose type this worker does not have."""
    try:
        value = upstream(binary_data, tensor_table)
    except (ImportError, pickle.UnpicklingError) as error:
        failure = _with_unknown_type(binary_data, error)
        if failure is None:
            raise
        return failure
    if _names_nothing_here(value):
        return _with_unknown_type(binary_data, value.__cause__) or _advised(value)
    return value


def _advised(missing: AttributeError) -> AttributeError:
    """torch's words for a name that is not found, in a line, with what to do."""
    made = AttributeError(
        f"{' '.join(str(missing).split())} Put them in a module that both can import, not in the "
        "program that is run (__main__)"
    )
    made.__cause__ = missing.__cause__
    return made


def _with_unknown_type(binary_data: bytes, why: object) -> internal.RemoteException | None:
    """The failure in this pickle with RemoteError as its type; None if it holds something else."""
    if b"RemoteException" not in binary_data:
        return None

    class Unpickler(unpickler_class()):  # type: ignore[misc]
        def find_class(self, module: str, name: str) -> Any:
            try:
                return super().find_class(module, name)
            except (ImportError, AttributeError, pickle.UnpicklingError):
                return RemoteError

    try:
        value = Unpickler(io.BytesIO(binary_data)).load()
    except Exception:
        return None
    if not isinstance(value, internal.RemoteException):
        return None
    return internal.RemoteException(f"{value.msg}\n(this is a RemoteError: {why})", RemoteError)


@patch(
    "torch.distributed.rpc.internal:_handle_exception",
    "(result)",
    without=_WITHOUT,
)
def handle_exception(upstream: Function, result: Any) -> None:
    """Raises the exception of a remote function with the text as it was sent."""
    if not isinstance(result, internal.RemoteException):
        return
    if not _C._weft_is_current():
        upstream(result)
    else:
        raise _rebuilt(result.exception_type, result.msg)


def _rebuilt(kind: type[Exception], text: str) -> Exception:
    """An exception of this type that shows this text.

    Where its constructor takes no text it is a RemoteError, too; and no more where that cannot be.
    """
    try:
        if str(made := kind(text)) == text:
            return made
        if str(made := _showing_text((kind,))(text)) == text:
            return made
    except Exception:
        pass
    # Programs look for torch's words.
    text += (
        "\n(this is a RemoteError: the type cannot be made of a text. "
        f"Original exception on remote side was {kind.__module__}.{kind.__qualname__})"
    )
    try:
        # Without the type's own constructor, whose arguments nobody has.
        both = _showing_text((kind, RemoteError))
        made = both.__new__(both, text)
        made.args = (text,)
        if str(made) == text:
            return made
    except Exception:
        pass
    return RemoteError(text)


def another_like(error: BaseException) -> BaseException:
    """An exception of the same type, arguments and attributes that has not been raised."""
    try:
        made = copy.copy(error)
        if type(made) is type(error) and str(made) == str(error):
            return made
    except Exception:
        pass  # its constructor takes other arguments than those that it keeps
    try:
        made = type(error).__new__(type(error), *error.args)
        made.args = error.args
        made.__dict__.update(error.__dict__)
        return made
    except Exception:
        return error.with_traceback(None)


@functools.lru_cache(maxsize=256)
def _showing_text(kinds: tuple[type[Exception], ...]) -> type[Exception]:
    """A subclass whose str() is the text: that of KeyError, for one, is the text's repr."""
    kind = kinds[0]
    names = {
        "__str__": lambda self: self.args[0],
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
        "_weft_origin": kind,  # what this worker's own callers are sent
    }
    return type(kind.__name__, kinds, names)
