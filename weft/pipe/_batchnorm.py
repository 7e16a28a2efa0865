"""BatchNorm in a pipeline: running statistics of the whole mini-batch.

A BatchNorm that sees micro-batches updates its running statistics once for each of them, with the
statistics of a part. :class:`DeferredBatchNorm` waits for the last one and updates them once, as a
plain BatchNorm would on the mini-batch. The output is still normalised by micro-batch, because the
rest of the mini-batch does not exist yet (as in torch/distributed/pipeline/sync/batchnorm.py of
PyTorch 2.3.1).
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm, _LazyNormBase
from torch.nn.utils.parametrize import is_parametrized

from weft import _C
from weft.pipe._inputs import check_chunks

TModule = TypeVar("TModule", bound=nn.Module)

# PyTorch's class kept its sums in buffers, so its checkpoints hold them.
_UPSTREAM_BUFFERS = ("sum", "sum_squares")


class _Part(NamedTuple):
    """Statistics of one micro-batch, by channel; the variance is that of a sample (n - 1)."""

    count: int
    mean: Tensor
    variance: Tensor


def _pooled(parts: list[_Part], biased: bool) -> tuple[Tensor, Tensor]:
    """Mean and variance of all parts together.

    Sums deviations from the common mean (Chan, Golub and LeVeque, 1979): a difference of mean squares
    loses the variance of channels whose mean is far from zero.
    """
    total = sum(part.count for part in parts)
    means = torch.stack([part.mean for part in parts])
    variances = torch.stack([part.variance for part in parts])
    if means.dtype in (torch.float16, torch.bfloat16):
        means, variances = means.float(), variances.float()
    counts = means.new_tensor([part.count for part in parts]).unsqueeze(1)
    mean = (means * (counts / total)).sum(0)
    squares = ((counts - 1) * variances + counts * (means - mean).square()).sum(0)
    return mean, squares / (total if biased else max(total - 1, 1))


class _MiniBatch:
    """The parts of a mini-batch that a layer has seen so far.

    A layer that the model calls k times has k rows of parts, one per call: a plain BatchNorm would
    be updated k times, each time with the whole mini-batch.
    """

    def __init__(self) -> None:
        self._serial: int | None = None  # which call of the Pipe; None outside one
        self._index = -1  # the present micro-batch
        self._call = 0  # the layer's calls in it
        self._rows: defaultdict[int, list[_Part]] = defaultdict(list)

    def add(self, part: _Part, chunks: int) -> list[_Part] | None:
        """Takes a part; returns the row that it completes, if it does."""
        running = _C.pipe.micro_batch()
        serial = running[2] if running else None
        if serial != self._serial:  # a mini-batch that failed has left its parts
            self._serial, self._index = serial, -1
            self._rows.clear()
        if running:
            index, count = running[:2]
            self._call = self._call + 1 if index == self._index else 0
        else:  # one call, one micro-batch
            index, count, self._call = len(self._rows[0]), chunks, 0
        self._index = index
        self._rows[self._call].append(part)
        return self._rows.pop(self._call) if index + 1 >= count else None


class DeferredBatchNorm(_BatchNorm):
    """A BatchNorm whose running statistics are updated once per mini-batch of several micro-batches.

    Inside a Pipe the mini-batch is the input of one call. Outside, it is `chunks` calls in training
    mode. Recomputations and mini-batches that fail do not count. Its ``state_dict`` is that of the
    plain BatchNorm. Not thread-safe: one stage runs it, one micro-batch after the other.

    ::

        layers = nn.Sequential(nn.Linear(2, 3), DeferredBatchNorm(3, chunks=4))
        for micro_batch in batch.chunk(4):
            layers(micro_batch)

    Args:
        num_features: as for ``nn.BatchNorm2d``, and so are ``eps``, ``momentum`` and ``affine``.
        chunks: calls in training mode that make a mini-batch outside a Pipe.
        biased: divide the running variance by n, as PyTorch 2.3 did, instead of n - 1.
        device: where parameters and buffers are.
        dtype: their type.

    Raises:
        ValueError: ``chunks`` is below 1.
    """

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        chunks: int = 1,
        *,
        biased: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, True, device=device, dtype=dtype)
        self._defer(chunks, biased, dimensions=())

    def _defer(self, chunks: int, biased: bool, dimensions: tuple[int, ...]) -> None:
        self.chunks = check_chunks(chunks)
        self.biased = biased
        self._dimensions = dimensions  # of the converted BatchNorm's input; () for any
        self._seen = _MiniBatch()

    def _check_input_dim(self, input: Tensor) -> None:
        wanted = self._dimensions
        if input.dim() < 2 or (wanted and input.dim() not in wanted):
            names = " or ".join(f"{number}D" for number in wanted) or "at least 2D"
            raise ValueError(f"expected {names} input (got {input.dim()}D input)")

    def forward(self, input: Tensor) -> Tensor:
        self._check_input_dim(input)
        if not self.training:
            return functional.batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, eps=self.eps
            )
        # With momentum 1, batch_norm writes the input's own statistics into these. They are fresh at
        # each call, also in recomputation, because autograd saves them with the other tensors.
        mean = torch.zeros_like(self.running_mean)
        variance = torch.ones_like(self.running_var)
        output = functional.batch_norm(
            input, mean, variance, self.weight, self.bias, training=True, momentum=1.0, eps=self.eps
        )
        if not _C.pipe.is_run_again():  # by a Pipe or by torch.utils.checkpoint
            part = _Part(input.numel() // input.size(1), mean, variance)
            if whole := self._seen.add(part, self.chunks):
                self._update(*_pooled(whole, self.biased))
        return output

    @torch.no_grad()
    def _update(self, mean: Tensor, variance: Tensor) -> None:
        self.num_batches_tracked.add_(1)
        weight: Tensor | float | None = self.momentum
        if weight is None:  # the mean of all mini-batches, computed on the device without waiting
            weight = 1.0 / self.num_batches_tracked.to(mean.dtype)
        for running, seen in ((self.running_mean, mean), (self.running_var, variance)):
            running.copy_(running.to(seen.dtype).lerp(seen, weight))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name in _UPSTREAM_BUFFERS:
            state_dict.pop(prefix + name, None)
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, chunks={self.chunks}" + ", biased=True" * self.biased

    @classmethod
    def convert_deferred_batch_norm(
        cls, module: TModule, chunks: int = 1, *, biased: bool | None = None
    ) -> TModule:
        """Replaces every BatchNorm in the module by a deferred one, in place; returns the module.

        The new layers share parameters, buffers and hooks with the old ones, and keep device, dtype
        and mode. A layer that tracks no statistics stays as it is, and so do, with a warning, a class
        with a ``forward`` of its own and a BatchNorm that is compiled by itself, TorchScript or
        parametrized.

        Args:
            module: a module with BatchNorms in it, or a BatchNorm.
            chunks: calls in training mode that make a mini-batch outside a Pipe.
            biased: None keeps the value of a deferred layer, and is False for others.

        Raises:
            NotImplementedError: a SyncBatchNorm, whose statistics span processes.
            ValueError: a lazy BatchNorm without parameters, or ``chunks`` below 1.
        """
        return _convert(module, chunks, biased, {})


def _dimensions(module: _BatchNorm) -> tuple[int, ...]:
    if isinstance(module, DeferredBatchNorm):
        return module._dimensions
    kinds = {nn.BatchNorm1d: (2, 3), nn.BatchNorm2d: (4,), nn.BatchNorm3d: (5,)}
    return next((size for kind, size in kinds.items() if isinstance(module, kind)), ())


def _deferred(module: _BatchNorm, chunks: int, biased: bool | None) -> _BatchNorm:
    """The deferred BatchNorm that takes this one's place."""
    if isinstance(module, DeferredBatchNorm):
        biased = module.biased if biased is None else biased
        if (module.chunks, module.biased) == (chunks, biased):
            return module
    elif isinstance(module, nn.SyncBatchNorm):
        # PyTorch 2.3 silently made it a layer of this process alone.
        raise NotImplementedError(
            "SyncBatchNorm can't be deferred: its statistics span processes, a deferred one's do "
            "not. Use BatchNorm, or deferred_batch_norm=False, which leaves it as it is"
        )
    elif isinstance(module, _LazyNormBase):
        raise ValueError(f"{module} has no parameters yet: pass it a batch before it is converted")
    elif reason := _why_it_stays(module):
        _warn(module, reason)
        return module
    result = DeferredBatchNorm.__new__(DeferredBatchNorm)
    # The new module takes over the attributes; it must not share their dictionaries with the old one.
    for name, value in vars(module).items():
        result.__dict__[name] = value.copy() if isinstance(value, dict) else value
    result._defer(chunks, bool(biased), _dimensions(module))
    return result


def _why_it_stays(module: _BatchNorm) -> str | None:
    if type(module).forward is not _BatchNorm.forward:
        return "has a forward of its own"
    if is_parametrized(module):
        return "has parametrizations"
    return None if module._compiled_call_impl is None else "is compiled"


def _has_scripted(module: nn.Module) -> bool:
    """Whether it is TorchScript, with a BatchNorm in it."""
    return isinstance(module, torch.jit.ScriptModule) and any(
        getattr(one, "original_name", "").startswith("BatchNorm") for one in module.modules()
    )


def _warn(module: nn.Module, reason: str) -> None:
    warnings.warn(
        f"{type(module).__name__} {reason} and stays as it is: its running statistics are updated for "
        "each micro-batch",
        stacklevel=6,
    )


def _convert(
    module: Any, chunks: int, biased: bool | None, done: dict[nn.Module, nn.Module]
) -> Any:
    if module not in done:
        result = module
        compiled = getattr(
            module, "_orig_mod", None
        )  # by torch.compile, which calls just that module
        if _has_scripted(module) or isinstance(compiled, _BatchNorm):
            _warn(module, "has a BatchNorm that is " + ("compiled" if compiled else "TorchScript"))
            done[module] = module
            return module
        if isinstance(module, _BatchNorm) and module.track_running_stats:
            result = _deferred(module, chunks, biased)
        done[module] = result
        # Not named_children(), which shows a layer with two names once.
        for name, child in module._modules.items():
            if child is not None:
                result._modules[name] = _convert(child, chunks, biased, done)
    return done[module]
