"""The contract of mechanisms: sizes, masks, states, traits, and the base module."""

from .budget import Budget as Budget
from .mask import Mask as Mask
from .mechanism import Attention as Attention
from .shapes import CallFacts as CallFacts
from .shapes import Dims as Dims
from .shapes import Sample as Sample
from .shapes import Shape as Shape
from .shapes import Values as Values
from .shapes import require_values as require_values
from .traits import Growth as Growth
from .traits import Input as Input
from .traits import Traits as Traits
