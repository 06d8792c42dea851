"""Gates and step sizes of recurrent states, in the ranges of trained models: what layers make of their projections, and
samplers of unit Gaussians."""

import torch
import torch.nn.functional as F
from torch import Tensor

GLA_TEMPERATURE = 16  # arXiv:2312.06635, section 4.4
STEP_OFFSET = -4.6  # softplus of it is .01: Mamba-2's models begin with steps of .001 to .1 (arXiv:2405.21060)
MEAN_RATE = 8  # Gated DeltaNet and KDA begin with rates of 0 to 16, as Mamba-2 does (arXiv:2412.06464, 2510.26692)


def soft_decay(x: Tensor) -> Tensor:
    """log(sigmoid(x)) / 16: decays of .93 to .99 for most x."""
    return F.logsigmoid(x) / GLA_TEMPERATURE


def small_step(x: Tensor) -> Tensor:
    """softplus(x - 4.6): steps of about .01."""
    return F.softplus(x + STEP_OFFSET)


def rate_decay(x: Tensor) -> Tensor:
    """-8 softplus(x - 4.6): decays of .8 to .97 for most x."""
    return -MEAN_RATE * small_step(x)


def unit_beta(x: Tensor) -> Tensor:
    """sigmoid(x)."""
    return torch.sigmoid(x)


def double_beta(x: Tensor) -> Tensor:
    """2 sigmoid(x), with which eigenvalues of transitions may be negative (arXiv:2411.12537)."""
    return 2 * torch.sigmoid(x)
