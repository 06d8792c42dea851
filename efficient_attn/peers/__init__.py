"""Peers: attention of other libraries behind our call signature, verified against our references and timed with our
implementations.

Each module is a plug-in that registers its mechanisms; suites load it by ``plugins = ["efficient_attn.peers.sparse"]``,
the command line by ``--plugin``. A peer passes q, k and v to its library as the library's own model would. Libraries
are installed by the extra ``peers``, and imported when a peer is created; this module imports neither torch nor them.
"""

from typing import NamedTuple


class Peer(NamedTuple):
    """A peer, the plug-in that registers it, and its library."""

    name: str
    plugin: str
    library: str


PEERS = tuple(
    Peer(name, f"{__name__}.{module}", library)
    for name, module, library in (
        ("peer_local_attention", "sparse", "local-attention"),
        ("peer_longformer", "sparse", "transformers"),
        ("peer_bigbird", "sparse", "transformers"),
        ("peer_flex_sliding_window", "flex", "torch's flex_attention"),
        ("peer_flex_longformer", "flex", "torch's flex_attention"),
        ("peer_flex_strided", "flex", "torch's flex_attention"),
        ("peer_linear_transformer", "linear", "linear-attention-transformer"),
        ("peer_performer", "linear", "performer-pytorch"),
        ("peer_simple_gla", "fla", "flash-linear-attention"),
        ("peer_fla_linear", "fla", "flash-linear-attention"),
        ("peer_forgetting", "fla", "flash-linear-attention"),
        ("peer_gla", "fla_recurrent", "flash-linear-attention"),
        ("peer_delta_rule", "fla_recurrent", "flash-linear-attention"),
        ("peer_gated_delta_rule", "fla_recurrent", "flash-linear-attention"),
        ("peer_kda", "fla_recurrent", "flash-linear-attention"),
        ("peer_linformer", "low_rank", "linformer"),
        ("peer_nystromformer", "low_rank", "transformers"),
        ("peer_reformer", "hashed", "reformer-pytorch"),
    )
)
