"""The planted bugs that verify the conformance tests, one file for each kind."""

from . import (
    classic_bugs,
    combinations,
    context_bugs,
    decoding_bugs,
    dtypes,
    family_calls,
    family_parameters,
    family_states,
    family_transforms,
    family_values,
    family_world,
    gradients,
    growth,
    leaks,
    mode_bugs,
    size_bugs,
)

MUTANTS = (
    *classic_bugs.BUGS,
    *size_bugs.BUGS,
    *combinations.BUGS,
    *dtypes.BUGS,
    *decoding_bugs.BUGS,
    *context_bugs.BUGS,
    *gradients.BUGS,
    *leaks.BUGS,
    *growth.BUGS,
    *mode_bugs.BUGS,
    *family_calls.BUGS,
    *family_parameters.BUGS,
    *family_states.BUGS,
    *family_world.BUGS,
    *family_values.BUGS,
    *family_transforms.BUGS,
)
