"""Data-parallel training in a weft group."""

# Annotations are objects here, not texts: DDP compares a hook's with the types it expects.

import torch
import torch.distributed as dist

from weft import _C
from weft._torch import current


def ddp_hook(
    group: dist.ProcessGroup | None, bucket: dist.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """A communication hook for DDP: averages gradients in memory of the group, without copies.

    DDP keeps its buckets in ordinary memory, which each all_reduce copies into shared memory and
    back. The hook moves each bucket into memory of the group once, and the division by the number of
    ranks is a part of the reduction. With ``gradient_as_bucket_view=True`` the gradients themselves
    are views of that memory, which also saves the copy from the bucket into them::

        model = DistributedDataParallel(module, gradient_as_bucket_view=True)
        model.register_comm_hook(None, weft.ddp_hook)

    Sparse gradients (``nn.Embedding(sparse=True)``) are summed where they are, and then divided.

    The gradients are those of DDP without a hook, but for rounding: the sum is divided, not each
    part of it. A hook does not know of ``join(divide_by_initial_world_size=False)``: with this one, as
    with torch's, sums are divided by the number of all ranks there too.

    Args:
        group: the hook's state: DDP's process group; None is the default group.
        bucket: the gradients that are ready, from DDP.

    Raises:
        ValueError: the tensors are on the CPU, and the group's CPU backend is not weft.
    """
    group = group if group is not None else dist.group.WORLD
    assert group is not None  # DDP has checked that there is one
    if isinstance(bucket, tuple):  # compiled DDP without buckets, which reads .grad afterwards
        from torch.distributed import _functional_collectives

        gradient, parameter = bucket
        parameter.grad.copy_(_functional_collectives.all_reduce(gradient, "avg", group))
        return None  # type: ignore[return-value]
    gradients = bucket.buffer()
    if gradients.device.type == "cpu":
        backend = current.backend_of(group, gradients.device)
        if not isinstance(backend, _C.WeftBackend):
            raise ValueError(
                f"weft.ddp_hook: {current.group_text(group.group_name)} averages gradients by "
                f"{type(backend).__name__}, not by weft; register the hook with a group whose "
                "backend is weft"
            )
        if not gradients.is_sparse:
            _C._move_into_group(backend, gradients)
    if gradients.is_sparse:  # all_reduce has no average of them
        size = group.size()
        summed = dist.all_reduce(gradients, group=group, async_op=True)
        return summed.get_future().then(lambda done: done.value()[0].div_(size))
    work = dist.all_reduce(gradients, dist.ReduceOp.AVG, group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
