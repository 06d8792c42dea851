"""One rank of a case: verify a call over all ranks, count what it sends, and time it. See `rank_processes`."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor

from ...contract import Attention, Dims, Mask, Shape
from ...distributed.collectives import Ranks, count_sent, get_ranks
from ...distributed.context_parallel import ContextParallel, Scheme
from ...distributed.sequence_parts import Order, join_sequence, split_sequence
from ...distributed.traffic import count_agreement_bytes, count_call_bytes
from ...errors import UnsupportedError
from ...registry import create, load_plugin
from .rank_job import JOB, STORE, RankJob, RankResult

ROUND_S = 0.05  # of calls in a round, at least
TIMEOUT = timedelta(minutes=10)

Tensors = dict[str, Tensor]


def main() -> None:
    """Run the job of a folder as a rank, and write the result or the error."""
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    job = RankJob(**json.loads((folder / JOB).read_text()))
    path = folder / f"{rank}.json"
    try:
        content = asdict(measure_rank(job, rank, folder / STORE))
    except Exception as error:
        path.write_text(json.dumps({"error": type(error).__name__, "message": f"{error}"}))
        sys.exit(1)
    path.write_text(json.dumps(content))
    dist.destroy_process_group()


def measure_rank(job: RankJob, rank: int, store: Path) -> RankResult:
    """What this rank measures; all ranks run it at the same time."""
    for plugin in job.plugins:
        load_plugin(plugin)
    device = _join_group(job, rank, store)
    ranks, parallel = get_ranks(), ContextParallel(cast(Scheme, job.scheme))
    order, mask = parallel.order(job.causal), Mask(job.causal)
    shape = Shape(job.batch, job.heads, job.kv_heads, job.seq_len, job.seq_len, job.head_dim, job.head_dim)
    attn, whole = _create(job, shape, device)
    parallel.check(attn)
    parts = {name: split_sequence(x, dim=2, order=order) for name, x in whole.items()}

    def call() -> Tensors:
        return run_call(lambda **x: parallel.attend(attn, mask=mask, **x), parts, training=job.training)

    with count_sent() as traffic:
        results = call()
    local_shape = Shape(job.batch, job.heads, job.kv_heads, *[job.seq_len // ranks.size] * 2, *[job.head_dim] * 2)
    dtype, options = getattr(torch, job.dtype), {"causal": job.causal, "training": job.training}
    formula = count_call_bytes(attn, parallel.scheme, local_shape, ranks, dtype, **options)
    formula -= 0 if device.type == "cpu" else count_agreement_bytes(ranks)
    difference = _compare(
        results, ranks, order, lambda: run_call(lambda **x: attn(mask=mask, **x), whole, job.training)
    )
    iterations = _count_iterations(call, device) if job.rounds else 0
    times = [_time_round(call, device, iterations) for _ in range(job.rounds)]
    return RankResult(times_s=times, sent=traffic.sent, formula=formula, difference=difference)


def _join_group(job: RankJob, rank: int, store: Path) -> torch.device:
    """Form the process group: NCCL with a GPU for each rank, else gloo."""
    torch.set_num_threads(job.threads)
    device = torch.device(job.device)
    if device.type == "cuda":
        if torch.cuda.device_count() < job.ranks:
            raise UnsupportedError(f"{job.ranks} ranks need as many GPUs, there are {torch.cuda.device_count()}")
        device = torch.device("cuda", rank)
        torch.cuda.set_device(device)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=job.ranks, timeout=TIMEOUT)
    return device


def _create(job: RankJob, shape: Shape, device: torch.device) -> tuple[Attention, Tensors]:
    """The mechanism and the tensors of the whole call, the same on all ranks; ``grad``: by the output."""
    dims = Dims(heads=job.heads, kv_heads=job.kv_heads, head_dim=job.head_dim, max_len=job.seq_len)
    dtype, generator = getattr(torch, job.dtype), torch.Generator().manual_seed(job.seed)
    attn = create(job.spec, dims=dims, seed=job.seed).to(device=device, dtype=dtype)
    q, k, v, inputs = attn.sample(shape, generator=generator, dtype=dtype, device=device)
    grad = torch.randn(*q.shape[:3], shape.value_dim, generator=generator).to(device=device, dtype=dtype)
    tensors = {"q": q, "k": k, **({} if v is None else {"v": v}), **inputs, "grad": grad}
    return attn, tensors


def run_call(attend: Callable[..., Tensor], tensors: Tensors, training: bool) -> Tensors:
    """The output, and in training the gradients by name."""
    leaves = {name: x.detach().requires_grad_(training) for name, x in tensors.items() if name != "grad"}
    with torch.set_grad_enabled(training):
        out = attend(**leaves)
    if not training:
        return {"out": out}
    out.backward(tensors["grad"])
    return {"out": out.detach(), **{name: x.grad for name, x in leaves.items() if x.grad is not None}}


def _compare(parts: Tensors, ranks: Ranks, order: Order, run_alone: Callable[[], Tensors]) -> float | None:
    """On rank 0 the largest difference of output and gradients from one process, relative to the largest number."""
    joined = {name: join_sequence(x, dim=2, order=order) for name, x in parts.items()}
    if ranks.rank:
        return None
    differences = [
        (joined[name].double() - x.double()).abs().max() / x.double().abs().max().clamp(min=1)
        for name, x in run_alone().items()
    ]
    return float(torch.stack(differences).max())  # NaN if any is


def _count_iterations(call: Callable[[], Any], device: torch.device) -> int:
    """The calls of a round, the same number on all ranks."""
    seconds = torch.tensor([_time_round(call, device, 1)], device=device)
    dist.all_reduce(seconds, dist.ReduceOp.MAX)
    return max(1, math.ceil(ROUND_S / float(seconds)))


def _time_round(call: Callable[[], Any], device: torch.device, iterations: int) -> float:
    """The seconds of a call, from the moment at which all ranks are ready."""
    _synchronize(device)
    dist.barrier()
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    _synchronize(device)
    return (time.perf_counter() - start) / iterations


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
