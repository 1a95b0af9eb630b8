"""The capacity policies by name. A new policy is one file, two lines here and one file in conf/policy."""

from growpage.budget.base import CapacityPolicy
from growpage.budget.coverage import Coverage
from growpage.budget.fixed import Fixed
from growpage.budget.fullkv import ElasticReserve, FullKV
from growpage.budget.gkv import GKV
from growpage.budget.growpage import GrowPage
from growpage.budget.inverse import Inverse
from growpage.budget.morphkv import MorphKV
from growpage.budget.random import Random
from growpage.budget.rkv import RKV
from growpage.budget.shrink import Shrink
from growpage.budget.zipage import Zipage

POLICIES: dict[str, type[CapacityPolicy]] = {
    policy.NAME: policy
    for policy in (
        FullKV,
        Fixed,
        GrowPage,
        Random,
        Inverse,
        Shrink,
        Coverage,
        ElasticReserve,
        Zipage,
        RKV,
        GKV,
        MorphKV,
    )
}
