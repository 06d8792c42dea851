"""The training tasks, each made from its problem."""

from ..training.learning import make_task
from . import copying, dates, digits, induction, listops, lm, mqar, patches, rewriting, selective_copying

MQAR = make_task(mqar.MQAR)
INDUCTION = make_task(induction.INDUCTION)
COPYING = make_task(copying.COPYING)
SELECTIVE_COPYING = make_task(selective_copying.SELECTIVE_COPYING)
LISTOPS = make_task(listops.LISTOPS)
REVERSAL = make_task(rewriting.REVERSAL)
SORTING = make_task(rewriting.SORTING)
DATES = make_task(dates.DATES)
DIGITS = make_task(digits.DIGITS)
PATCHES = make_task(patches.PATCHES)
LM = make_task(lm.LM)
