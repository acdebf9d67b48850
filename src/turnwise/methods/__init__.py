"""Provide published methods, one file each: a chain of public blocks, its formula, its reference.

To add a method, write its file and add its line below: `METHODS`, the package's public names, tests, command line and
docs then include it. They list methods in this order.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from turnwise.card import Card
from turnwise.transform import Transform

# isort: off
from turnwise.methods.reinforce import reinforce as reinforce
from turnwise.methods.rloo import rloo as rloo
from turnwise.methods.grpo import grpo as grpo
from turnwise.methods.grpo import dr_grpo as dr_grpo
from turnwise.methods.gigpo import gigpo as gigpo
from turnwise.methods.gagpo import gagpo as gagpo
from turnwise.methods.graph_gpo import graph_gpo as graph_gpo
from turnwise.methods.rtmc import rtmc as rtmc
from turnwise.methods.blup import blup as blup
from turnwise.methods.hgpo import hgpo as hgpo
from turnwise.methods.proxmo import proxmo as proxmo
from turnwise.methods.reinforce_pp import reinforce_pp as reinforce_pp
from turnwise.methods.reinforce_pp import reinforce_pp_baseline as reinforce_pp_baseline
from turnwise.methods.trloo import trloo as trloo
from turnwise.methods.mars import mars as mars
from turnwise.methods.rae import rae as rae
from turnwise.methods.advevo import advevo as advevo
from turnwise.methods.mica import mica as mica
from turnwise.methods.srgpo import srgpo as srgpo
from turnwise.methods.gae import gae as gae
from turnwise.methods.ppo import ppo as ppo
from turnwise.methods.ppo import turn_ppo as turn_ppo
from turnwise.methods.ppo import bilevel_gae as bilevel_gae
from turnwise.methods.gae import egae as egae
from turnwise.methods.archer import archer as archer
from turnwise.methods.vine_ppo import vine_ppo as vine_ppo
from turnwise.methods.spo import spo as spo
from turnwise.methods.spo import spo_chain as spo_chain
from turnwise.methods.spo import spo_tree as spo_tree
from turnwise.methods.treerl import treerl as treerl
from turnwise.methods.rose import rose as rose
from turnwise.methods.hiper import hiper as hiper
from turnwise.methods.canon import canon as canon
from turnwise.methods.ngrpo import ngrpo as ngrpo
from turnwise.methods.v05 import v05 as v05
from turnwise.methods.hapo import hapo as hapo
from turnwise.methods.arpo import arpo as arpo
from turnwise.methods.tree_grpo import tree_grpo as tree_grpo
from turnwise.methods.at2po import at2po as at2po
from turnwise.methods.carl import carl as carl
from turnwise.methods.aem import aem as aem
from turnwise.methods.empg import empg as empg
from turnwise.methods.spae import spae as spae
from turnwise.methods.hcapo import hcapo as hcapo
from turnwise.methods.adora import adora as adora
from turnwise.methods.a_grae import a_grae as a_grae
from turnwise.methods.grpo_n import grpo_n as grpo_n
from turnwise.methods.d3s import d3s as d3s
from turnwise.methods.ace import ace as ace
from turnwise.methods.progrpo import progrpo as progrpo
from turnwise.methods.verl_er import verl_er as verl_er
from turnwise.methods.igpo import igpo as igpo
from turnwise.methods.istar import istar as istar
from turnwise.methods.a2tgpo import a2tgpo as a2tgpo
from turnwise.methods.infopo import infopo as infopo
from turnwise.methods.matchtir import matchtir as matchtir
from turnwise.methods.unlikeliness import unlikeliness as unlikeliness
from turnwise.methods.arena_rl import arena_rl as arena_rl
from turnwise.methods.r3 import r3 as r3
from turnwise.methods.tp_grpo import tp_grpo as tp_grpo
# isort: on

METHODS: dict[str, Callable[..., Transform]] = {
    name: found for name, found in globals().items() if isinstance(getattr(found, "card", None), Card)
}
"""Constructors by name. An option without a published value has no default; `turnwise.trial` builds any method."""

COMPARED = ("grpo", "grpo+aem", "gigpo", "gigpo+aem", "dr_grpo", "rloo", "hgpo", "empg")
"""Methods that a report compares unless told others; an analysis that takes longer compares the first two or three."""

if not TYPE_CHECKING:  # a type checker reads the imports
    __all__ = ["METHODS", *METHODS]
