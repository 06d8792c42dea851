"""All selections: measured before a run, and shown by ``doctor``."""

from .half_precision import HALF
from .products import PRODUCTS
from .softmax.decode import DECODE

TUNABLES = (PRODUCTS, HALF, DECODE)
