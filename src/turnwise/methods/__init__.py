"""Provide published methods, one file each: a chain of public blocks, its formula, its reference.

To add a method, write its file and add it to `METHODS`. Tests, command line and docs then include it.
"""

from collections.abc import Callable

from turnwise.methods.a2tgpo import a2tgpo
from turnwise.methods.a_grae import a_grae
from turnwise.methods.ace import ace
from turnwise.methods.adora import adora
from turnwise.methods.advevo import advevo
from turnwise.methods.aem import aem
from turnwise.methods.archer import archer
from turnwise.methods.arena_rl import arena_rl
from turnwise.methods.arpo import arpo
from turnwise.methods.at2po import at2po
from turnwise.methods.blup import blup
from turnwise.methods.canon import canon
from turnwise.methods.carl import carl
from turnwise.methods.d3s import d3s
from turnwise.methods.empg import empg
from turnwise.methods.gae import egae, gae
from turnwise.methods.gagpo import gagpo
from turnwise.methods.gigpo import gigpo
from turnwise.methods.graph_gpo import graph_gpo
from turnwise.methods.grpo import dr_grpo, grpo
from turnwise.methods.grpo_n import grpo_n
from turnwise.methods.hapo import hapo
from turnwise.methods.hcapo import hcapo
from turnwise.methods.hgpo import hgpo
from turnwise.methods.hiper import hiper
from turnwise.methods.igpo import igpo
from turnwise.methods.infopo import infopo
from turnwise.methods.istar import istar
from turnwise.methods.mars import mars
from turnwise.methods.matchtir import matchtir
from turnwise.methods.mica import mica
from turnwise.methods.ngrpo import ngrpo
from turnwise.methods.ppo import bilevel_gae, ppo, turn_ppo
from turnwise.methods.progrpo import progrpo
from turnwise.methods.proxmo import proxmo
from turnwise.methods.r3 import r3
from turnwise.methods.rae import rae
from turnwise.methods.reinforce import reinforce
from turnwise.methods.reinforce_pp import reinforce_pp, reinforce_pp_baseline
from turnwise.methods.rloo import rloo
from turnwise.methods.rose import rose
from turnwise.methods.rtmc import rtmc
from turnwise.methods.spae import spae
from turnwise.methods.spo import spo, spo_chain, spo_tree
from turnwise.methods.srgpo import srgpo
from turnwise.methods.tp_grpo import tp_grpo
from turnwise.methods.tree_grpo import tree_grpo
from turnwise.methods.treerl import treerl
from turnwise.methods.trloo import trloo
from turnwise.methods.unlikeliness import unlikeliness
from turnwise.methods.v05 import v05
from turnwise.methods.verl_er import verl_er
from turnwise.methods.vine_ppo import vine_ppo
from turnwise.transform import Transform

METHODS: dict[str, Callable[..., Transform]] = {
    "reinforce": reinforce,
    "rloo": rloo,
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "gigpo": gigpo,
    "gagpo": gagpo,
    "graph_gpo": graph_gpo,
    "rtmc": rtmc,
    "blup": blup,
    "hgpo": hgpo,
    "proxmo": proxmo,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "trloo": trloo,
    "mars": mars,
    "rae": rae,
    "advevo": advevo,
    "mica": mica,
    "srgpo": srgpo,
    "gae": gae,
    "ppo": ppo,
    "turn_ppo": turn_ppo,
    "bilevel_gae": bilevel_gae,
    "egae": egae,
    "archer": archer,
    "vine_ppo": vine_ppo,
    "spo": spo,
    "spo_chain": spo_chain,
    "spo_tree": spo_tree,
    "treerl": treerl,
    "rose": rose,
    "hiper": hiper,
    "canon": canon,
    "ngrpo": ngrpo,
    "v05": v05,
    "hapo": hapo,
    "arpo": arpo,
    "tree_grpo": tree_grpo,
    "at2po": at2po,
    "carl": carl,
    "aem": aem,
    "empg": empg,
    "spae": spae,
    "hcapo": hcapo,
    "adora": adora,
    "a_grae": a_grae,
    "grpo_n": grpo_n,
    "d3s": d3s,
    "ace": ace,
    "progrpo": progrpo,
    "verl_er": verl_er,
    "igpo": igpo,
    "istar": istar,
    "a2tgpo": a2tgpo,
    "infopo": infopo,
    "matchtir": matchtir,
    "unlikeliness": unlikeliness,
    "arena_rl": arena_rl,
    "r3": r3,
    "tp_grpo": tp_grpo,
}
"""Constructors by name. An option without a published value has no default; `turnwise.trial` builds any method."""

__all__ = [
    "METHODS",
    "a2tgpo",
    "a_grae",
    "ace",
    "adora",
    "advevo",
    "aem",
    "archer",
    "arena_rl",
    "arpo",
    "at2po",
    "bilevel_gae",
    "blup",
    "canon",
    "carl",
    "d3s",
    "dr_grpo",
    "egae",
    "empg",
    "gae",
    "gagpo",
    "gigpo",
    "graph_gpo",
    "grpo",
    "grpo_n",
    "hapo",
    "hcapo",
    "hgpo",
    "hiper",
    "igpo",
    "infopo",
    "istar",
    "mars",
    "matchtir",
    "mica",
    "ngrpo",
    "ppo",
    "progrpo",
    "proxmo",
    "r3",
    "rae",
    "reinforce",
    "reinforce_pp",
    "reinforce_pp_baseline",
    "rloo",
    "rose",
    "rtmc",
    "spae",
    "spo",
    "spo_chain",
    "spo_tree",
    "srgpo",
    "tp_grpo",
    "tree_grpo",
    "treerl",
    "trloo",
    "turn_ppo",
    "unlikeliness",
    "v05",
    "verl_er",
    "vine_ppo",
]
