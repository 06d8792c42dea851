"""The planted bugs, a file a kind."""

from . import classics, combinations, decoding, dtypes, gradients, growth, lapses, leaks, sizes, world

MUTANTS = (
    *classics.BUGS,
    *sizes.BUGS,
    *combinations.BUGS,
    *dtypes.BUGS,
    *decoding.BUGS,
    *world.BUGS,
    *gradients.BUGS,
    *leaks.BUGS,
    *growth.BUGS,
    *lapses.BUGS,
)
