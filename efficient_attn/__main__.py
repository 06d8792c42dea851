"""``python -m efficient_attn``."""

import sys

from .cli import main

sys.exit(main())
