"""The list of peers, readable without torch and without their libraries."""

from __future__ import annotations

from typing import NamedTuple


class Peer(NamedTuple):
    """A peer, the plug-in that registers it, and its library."""

    name: str
    plugin: str
    library: str


def _make_peer(name: str, file: str, library: str) -> Peer:
    """A file of this folder is a plug-in."""
    return Peer(name, f"efficient_attn.peers.{file}", library)


# compared with what the plug-ins register by a test
PEERS = (
    _make_peer("peer_local_attention", "sparse", "local-attention"),
    _make_peer("peer_longformer", "sparse", "transformers"),
    _make_peer("peer_bigbird", "sparse", "transformers"),
    _make_peer("peer_flex_sliding_window", "flex", "torch's flex_attention"),
    _make_peer("peer_flex_longformer", "flex", "torch's flex_attention"),
    _make_peer("peer_flex_strided", "flex", "torch's flex_attention"),
    _make_peer("peer_linear_transformer", "linear", "linear-attention-transformer"),
    _make_peer("peer_performer", "linear", "performer-pytorch"),
    _make_peer("peer_simple_gla", "fla", "flash-linear-attention"),
    _make_peer("peer_fla_linear", "fla", "flash-linear-attention"),
    _make_peer("peer_linformer", "low_rank", "linformer"),
    _make_peer("peer_nystromformer", "low_rank", "transformers"),
    _make_peer("peer_reformer", "hashed", "reformer-pytorch"),
)
