"""What DDP does with the front ends' gradients. DDP looks at the hook's annotations, so they are no text."""

import torch
import torch.distributed as dist


def add_up(group: dist.ProcessGroup, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """The sum over the trainers, where DDP itself would take the mean."""
    work = dist.all_reduce(bucket.buffer(), group=group, async_op=True)
    return work.get_future().then(lambda done: done.value()[0])
