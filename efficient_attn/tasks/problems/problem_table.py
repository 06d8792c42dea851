"""The training tasks, each made from its problem."""

from ..training.learning import make_task
from . import (
    cifar10,
    copying,
    dates,
    digits,
    imdb,
    induction,
    listops,
    lm,
    matching,
    mqar,
    patches,
    pathfinder,
    pronunciation,
    rewriting,
    selective_copying,
    state_tracking,
)

MQAR = make_task(mqar.MQAR)
INDUCTION = make_task(induction.INDUCTION)
COPYING = make_task(copying.COPYING)
SELECTIVE_COPYING = make_task(selective_copying.SELECTIVE_COPYING)
LISTOPS = make_task(listops.LISTOPS)
REVERSAL = make_task(rewriting.REVERSAL)
SORTING = make_task(rewriting.SORTING)
DATES = make_task(dates.DATES)
PRONUNCIATION = make_task(pronunciation.PRONUNCIATION)
DIGITS = make_task(digits.DIGITS)
PATCHES = make_task(patches.PATCHES)
PARITY = make_task(state_tracking.PARITY)
S3 = make_task(state_tracking.S3)
S5 = make_task(state_tracking.S5)
PATHFINDER = make_task(pathfinder.PATHFINDER)
CIFAR10 = make_task(cifar10.CIFAR10)
MATCHING = make_task(matching.MATCHING)
IMDB = make_task(imdb.IMDB)
LM = make_task(lm.LM)
