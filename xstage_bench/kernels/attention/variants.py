"""The ways to do an attention and its All-to-All: fused, and one after the other by whatever moves the data.

A variant queues its work for all ranks on their streams and returns; `measure` times it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from xstage_bench.kernels.attention.attention import REPORT, STAMP, AttentionBuild, Flags
from xstage_bench.kernels.attention.gpu import AttentionGpu
from xstage_bench.kernels.attention.plans import awaited, flag_words
from xstage_bench.kernels.attention.rig import Rig
from xstage_bench.kernels.attention.transfer import PIECE, received_to_place, staged_to_owner, tiles_to_owners
from xstage_bench.kernels.nccl import Nccl

IN_ORDER = "row-major"


@dataclass(frozen=True, slots=True)
class AttentionVariant:
    """One way to do the work: `queue` queues it for every rank, and afterwards the rows are with their owners if it `delivers`.

    `reports`: where each rank's kernel says whether a flag came too late.
    """

    name: str
    queue: Callable[[], None]
    delivers: bool = True
    reports: tuple[tuple[AttentionGpu, int], ...] = ()

    def late(self) -> bool:
        """Whether a rank waited in vain for a flag in the last launch."""
        return any(bool(gpu.downloaded(address, REPORT)["timed_out"][0]) for gpu, address in self.reports)


def alone(rig: Rig, build: AttentionBuild) -> AttentionVariant:
    """Attention whose result stays where it is: what everything is compared with."""
    plans = [rig.plan_local(rank, build, IN_ORDER) for rank in rig.placing.sources]
    return AttentionVariant("alone", _attention(rig, build, plans), delivers=False)


def fused(rig: Rig, build: AttentionBuild, order: str, flags: Flags = "none") -> AttentionVariant:
    """Each tile goes to the owners of its rows as soon as it is computed.

    With `flags`, the kernel of a rank ends when everything that others send it has arrived; without, when it has sent everything.
    """
    build = replace(build, flags=flags)
    plans = [rig.plan_owners(rank, build, order) for rank in rig.placing.sources]
    name = f"fused {build.store} {order}" + (f" {flags}" if flags != "none" else "")
    if flags == "none":
        return AttentionVariant(name, _attention(rig, build, plans))
    p, placing = rig.problem, rig.placing
    device, ctas = {gpu.index: gpu for gpu in rig.gpus}, ctas_of(plans[0], rig.gpus[0].sms)
    words = {
        (s, o): rig.take(device[placing.device_of(s, o)], 4 * flag_words(p, build))
        for s in placing.sources
        for o in range(p.ranks)
        if p.rows_of(o)
    }
    reports = [rig.take(gpu, REPORT.itemsize) for gpu in rig.gpus]
    for rank, (gpu, plan) in enumerate(zip(rig.gpus, plans, strict=True)):
        for owner in range(p.ranks):
            plan["flags"][0, owner] = words.get((rank, owner), 0)
        plan["waits"], plan["wait_count"] = rig.upload(gpu, awaited(placing, build, rank, ctas, words))
        plan["report"] = reports[rank]
    return AttentionVariant(name, _attention(rig, build, plans), reports=tuple(zip(rig.gpus, reports, strict=True)))


def stamped(rig: Rig, build: AttentionBuild, order: str | None) -> NDArray[np.void]:
    """Execute with a time stamp around each tile's parts, alone (`order` None) or fused, and return the `STAMP`s of rank 0.

    It is executed twice and the second time counts: the first wakes links that fell asleep while the host prepared it, and waits for them.
    """
    build = replace(build, stamps=True)
    plans, places = [], []
    for r, gpu in enumerate(rig.gpus):
        plan = rig.plan_owners(r, build, order) if order else rig.plan_local(r, build, IN_ORDER)
        tiles = int(plan["tiles"][0])
        places.append(rig.take(gpu, tiles * build.consumers * STAMP.itemsize))
        plan["stamps"] = places[-1]
        plans.append(plan)
    queue = _attention(rig, build, plans)
    for _ in range(2):
        queue()
        for gpu in rig.gpus:
            gpu.synchronize()
    tiles = int(plans[0]["tiles"][0])
    return rig.gpus[0].downloaded(places[0], STAMP, tiles * build.consumers).reshape(tiles, build.consumers)


def then_push(rig: Rig, build: AttentionBuild) -> AttentionVariant:
    """Attention, then a kernel whose SMs all copy to the peers by 16-byte stores."""
    attention, staged = _staged(rig, build)
    tables = []
    for r, gpu in enumerate(rig.gpus):
        pieces = [staged_to_owner(rig.problem, r, o, staged[r], at) for o, at in rig.owners(r).items() if o != r]
        tables.append(rig.upload(gpu, np.concatenate([np.zeros(0, PIECE), *pieces])))

    def queue() -> None:
        attention()
        for gpu, table in zip(rig.gpus, tables, strict=True):
            gpu.copy_pieces(table, gpu.stream)

    return AttentionVariant("push", queue)


def then_copy_engine(rig: Rig, build: AttentionBuild) -> AttentionVariant:
    """Attention, then one strided copy to each peer by the copy engine."""
    from cuda.bindings import runtime

    attention, staged = _staged(rig, build)
    p = rig.problem
    pitch = p.ranks * p.row_bytes

    def queue() -> None:
        attention()
        for r, gpu in enumerate(rig.gpus):
            gpu.use()
            for owner, address in rig.owners(r).items():
                if owner != r:
                    source = staged[r] + owner * p.rows_per_owner * pitch + r * p.row_bytes
                    kind = runtime.cudaMemcpyKind.cudaMemcpyDefault
                    (status,) = runtime.cudaMemcpy2DAsync(
                        address + r * p.row_bytes, pitch, source, pitch, p.row_bytes, p.rows_of(owner), kind, gpu.stream.ptr
                    )
                    if status != runtime.cudaError_t.cudaSuccess:
                        raise RuntimeError(f"GPU {gpu.index}: {status.name} in a copy to a peer")

    return AttentionVariant("copy engine", queue)


def beside_copying_sms(rig: Rig, build: AttentionBuild, sms: int) -> AttentionVariant:
    """Attention on all but `sms` SMs, which copy each tile to its owner when its flag is set."""
    build = replace(build, flags="tile", store="st.v4")
    plans, tables, epoch = [], [], 0
    for r, gpu in enumerate(rig.gpus):
        addresses = rig.owners(r)
        staged, to = _staging(rig, r)
        flags = rig.take(gpu, 4 * flag_words(rig.problem, build))
        plan = rig.plan_owners(r, build, IN_ORDER, to)
        plan["flags"][0, : rig.problem.ranks] = flags
        plan["report"] = rig.take(gpu, REPORT.itemsize)
        gpu.kernel(build)  # loading it while the copying kernel waits for its flags would dead-lock
        plans.append(plan)
        words = rig.order(r, IN_ORDER, build)[1]
        tables.append(rig.upload(gpu, tiles_to_owners(rig.placing, build, r, words, staged, addresses, flags)))

    def queue() -> None:
        nonlocal epoch
        epoch += 1
        for gpu, plan, table in zip(rig.gpus, plans, tables, strict=True):
            plan["epoch"] = epoch
            gpu.side_stream.wait_event(gpu.event())
            gpu.copy_pieces(table, gpu.side_stream, blocks=sms, epoch=epoch)
            gpu.kernel(build).launch(plan, gpu.stream.ptr, ctas_of(plan, gpu.sms - sms))
            gpu.stream.wait_event(gpu.event(gpu.side_stream))

    return AttentionVariant(f"{sms} copying SMs", queue)


def then_nccl(rig: Rig, build: AttentionBuild, nccl: Nccl) -> AttentionVariant:
    """Attention, the All-to-All of NCCL, and the permutation that puts each head in its place."""
    p, placing = rig.problem, rig.placing
    attention = alone(rig, build).queue
    messages: list[tuple[int, int, int, int, int]] = []
    pieces: list[list[NDArray[np.void]]] = [[] for _ in rig.gpus]
    for s in placing.sources:
        for owner, address in rig.owners(s).items():
            block = rig.local[s] + owner * p.rows_per_owner * p.row_bytes
            size = p.rows_of(owner) * p.row_bytes
            receiver = s if owner == s else (1 - s if placing.emulated else owner)
            if receiver != s:
                there = rig.take(rig.gpus[receiver], size)
                messages.append((s, receiver, block, there, size))
                block = there
            pieces[receiver].append(received_to_place(p, s, owner, block, address))
    tables = [rig.upload(gpu, np.concatenate([np.zeros(0, PIECE), *mine])) for gpu, mine in zip(rig.gpus, pieces, strict=True)]

    def queue() -> None:
        attention()
        nccl.exchange(messages, [gpu.stream.ptr for gpu in rig.gpus])
        for gpu, table in zip(rig.gpus, tables, strict=True):
            gpu.copy_pieces(table, gpu.stream)

    return AttentionVariant("nccl", queue)


def as_graph(rig: Rig, variant: AttentionVariant) -> AttentionVariant:
    """Capture a variant's work of every rank once and replay it: no launch gaps between its kernels."""
    for gpu in rig.gpus:
        gpu.use()
        gpu.stream.begin_capture()  # relaxed: the other GPU's stream is captured at the same time
    variant.queue()
    graphs: list[Any] = []
    for gpu in rig.gpus:
        gpu.use()
        graphs.append(gpu.stream.end_capture())

    def queue() -> None:
        for gpu, graph in zip(rig.gpus, graphs, strict=True):
            gpu.use()
            graph.launch(gpu.stream)

    return AttentionVariant(f"{variant.name} graph", queue)


def ctas_of(plan: NDArray[np.void], sms: int) -> int:
    """CTAs of a launch: one for each SM, never more than there are tiles."""
    return min(sms, int(plan["tiles"][0]))


def _attention(rig: Rig, build: AttentionBuild, plans: list[NDArray[np.void]]) -> Callable[[], None]:
    kernels = [gpu.kernel(build) for gpu in rig.gpus]
    epoch = 0

    def queue() -> None:
        nonlocal epoch
        epoch += 1
        for gpu, kernel, plan in zip(rig.gpus, kernels, plans, strict=True):
            plan["epoch"] = epoch
            kernel.launch(plan, gpu.stream.ptr, ctas_of(plan, gpu.sms))

    return queue


def _staging(rig: Rig, rank: int) -> tuple[int, dict[int, int]]:
    """Return memory for rows of other owners, laid out as with them, and where the attention shall store each owner's rows."""
    p = rig.problem
    pitch = p.ranks * p.row_bytes
    staged = rig.take(rig.gpus[rank], p.seq * pitch)
    return staged, {o: at if o == rank else staged + o * p.rows_per_owner * pitch for o, at in rig.owners(rank).items()}


def _staged(rig: Rig, build: AttentionBuild) -> tuple[Callable[[], None], list[int]]:
    """Attention that puts its own rows in place and the others' where they can be sent from."""
    stagings = [_staging(rig, r) for r in range(len(rig.gpus))]
    plans = [rig.plan_owners(rank, build, IN_ORDER, to) for rank, (_, to) in enumerate(stagings)]
    return _attention(rig, build, plans), [staged for staged, _ in stagings]
