"""All contests: what is settled before a run, and shown by ``doctor``."""

from .half import HALF
from .products import PRODUCTS
from .softmax.decode import DECODE

ALL = (PRODUCTS, HALF, DECODE)
