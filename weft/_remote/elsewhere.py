"""Runs at the caller: the methods of ``nn.Module`` for a module that lives with another worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import torch
import torch.distributed.rpc as rpc
from torch import Tensor, nn
from torch.distributed.rpc import PyRRef as RRef
from typing_extensions import Self

from weft._remote import at_owner

# In a remote module's entry of a state_dict's metadata: the entries of its submodules.
_INSIDE = "weft_submodules"


def _metadata(
    state_dict: Mapping[str, Any], prefix: str, own: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """The metadata of a state_dict by submodule, which has the versions of their states.

    It is complete if the state is a remote module's, or comes from a model that holds one. If the state of
    a plain model is loaded into a model that holds a remote module, torch passes only the module's own entry.
    """
    found = dict(own.get(_INSIDE, {}))
    if not prefix:
        found.update(getattr(state_dict, "_metadata", {}))
    # load_state_dict(assign=True) leaves entries that concern only this process.
    ours = ("assign_to_params_buffers", _INSIDE)
    found[""] = own
    return {
        module: {key: value for key, value in entry.items() if key not in ours}
        for module, entry in found.items()
    }


class ModuleElsewhere(nn.Module):
    """Does at the owner what ``nn.Module`` does to its own layers. Not for use by itself."""

    # And `timeout`, without an annotation: torch.jit compiles it, and reads none that is a text.
    module_rref: RRef

    def _at_owner(self, function: Callable[..., Any], *args: Any) -> Any:
        """Calls a function of ``weft._remote.at_owner`` there, with the module first."""
        return rpc.rpc_sync(
            self.module_rref.owner(),
            function,
            args=(self.module_rref, *args),
            timeout=self.timeout,
        )

    def train(self, mode: bool = True) -> Self:
        self._at_owner(at_owner.change, "train", mode)
        return super().train(mode)

    def zero_grad(self, set_to_none: bool = True) -> None:
        self._at_owner(at_owner.change, "zero_grad", set_to_none)

    def requires_grad_(self, requires_grad: bool = True) -> Self:
        self._at_owner(at_owner.change, "requires_grad_", requires_grad)
        return self

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        # Called by .half(), .to(torch.bfloat16), .type(…) of this module or of one that holds it. Tries
        # what the function does to dtypes, and does the same at the owner. The device does not change.
        def cast_to(one: torch.dtype, other: torch.dtype) -> torch.dtype | None:
            """The dtype that the function makes of both; None: it keeps each."""
            made = [fn(torch.empty(0, dtype=dtype)).dtype for dtype in (one, other)]
            return made[0] if made[0] == made[1] else None

        casts = (
            cast_to(torch.float32, torch.float64),
            cast_to(torch.complex64, torch.complex128),
            cast_to(torch.int32, torch.int64),
        )
        if any(casts):
            self._at_owner(at_owner.cast, *casts)
        return self

    def _refuse(self, method: str, name: str) -> NoReturn:
        raise ValueError(
            f"Method ``{method}`` not supported for RemoteModule: '{name}' would live in this process. "
            "Make it in module_cls, or in the model around this."
        )

    def register_buffer(self, name: str, *_: Any, **__: Any) -> None:
        """Refused: a buffer of the module lives with its owner."""
        self._refuse("register_buffer", name)

    def register_parameter(self, name: str, *_: Any, **__: Any) -> None:
        """Refused: a parameter of the module lives with its owner."""
        self._refuse("register_parameter", name)

    def add_module(self, name: str, *_: Any, **__: Any) -> None:
        """Refused: a submodule of the module lives with its owner."""
        self._refuse("add_module", name)

    def _save_to_state_dict(
        self, destination: dict[str, Any], prefix: str, keep_vars: bool
    ) -> None:
        values = self._at_owner(at_owner.state)
        for key, value in values.items():
            destination[prefix + key] = value
        metadata = getattr(destination, "_metadata", None)
        if metadata is not None:
            found = getattr(values, "_metadata", {})
            for key, value in found.items():
                metadata[(prefix + key).rstrip(".")] = value
            # A model gets only this module's own entry back, so that holds the submodules' entries, too.
            inside = {key: value for key, value in found.items() if key}
            metadata[prefix.rstrip(".")] = {**found.get("", {}), _INSIDE: inside}

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        local_metadata: Mapping[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = {key[len(prefix) :]: state_dict[key] for key in state_dict if key.startswith(prefix)}
        metadata = _metadata(state_dict, prefix, local_metadata)
        missing, unexpected, problem = self._at_owner(at_owner.load_state, own, metadata)
        missing_keys.extend(prefix + key for key in missing)
        if strict:
            unexpected_keys.extend(prefix + key for key in unexpected)
        if problem:
            error_msgs.append(f"at worker '{self.module_rref.owner_name()}': {problem}")
