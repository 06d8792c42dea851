"""Attention across devices: each rank of a process group has a part of the sequence.

Layers use it as ``MultiHeadAttention(..., context_parallel="ring")``. Only collectives of `torch.distributed` are used,
with any backend; torch's own context parallelism has no kernel for the CPU.
"""

from .collectives import Ranks as Ranks
from .collectives import Traffic as Traffic
from .collectives import count_sent as count_sent
from .collectives import get_ranks as get_ranks
from .context_parallel import ContextParallel as ContextParallel
from .ring import ring_attention as ring_attention
from .sequence_parts import join_sequence as join_sequence
from .sequence_parts import list_positions as list_positions
from .sequence_parts import split_sequence as split_sequence
