"""Every method and variant that the tables of laws are run over, and which laws it is not held to.

A new entry of METHODS joins by itself. Where it breaks a law on purpose, it is named in `EXCEPT` with the reason; a
method that compares whole trajectories only is named in `EPISODE` and gets the stricter laws too.
"""

import turnwise as tw
from turnwise.credit.methods.gigpo import Convention as GigpoConvention
from turnwise.credit.methods.grpo import Convention as GrpoConvention
from turnwise.credit.methods.rloo import Convention as RlooConvention


def _conventions(literal) -> tuple[str, ...]:
    return literal.__args__


PUBLISHED: dict[str, tw.Transform] = {name: tw.trial(make) for name, make in tw.METHODS.items()}

VARIANTS: dict[str, tw.Transform] = {
    "reinforce(discount=0.5)": tw.reinforce(discount=0.5),
    "gigpo(scale=False)": tw.gigpo(scale=False),
    "gigpo(scale=False, weight=0)": tw.gigpo(scale=False, weight=0.0),
    "gigpo(similarity=0.9)": tw.gigpo(similarity=0.9),
    "gigpo(discount=1)": tw.gigpo(discount=1.0),
    "aem(temperature=-1)": tw.aem(temperature=-1.0),
    "aem(temperature=0)": tw.aem(temperature=0.0),
    "aem(scope=trajectory)": tw.aem(scope="trajectory"),
    "aem(scope=batch)": tw.aem(scope="batch"),
    "aem(shuffle)": tw.aem(shuffle=True),
    "gae(decay=0)": tw.gae(decay=0.0),
    "gae(decay=1)": tw.gae(decay=1.0),
    "gae(discount=0.9)": tw.gae(discount=0.9),
    "gae(unfinished=repeat)": tw.gae(unfinished="repeat"),
    "gae(unfinished=next)": tw.gae(unfinished="next"),
    "ppo(standardize=False)": tw.ppo(standardize=False),
    "ppo(standardize=False, decay=0.5)": tw.ppo(standardize=False, decay=0.5),
    "turn_ppo(standardize=False, discount=1)": tw.turn_ppo(standardize=False, discount=1.0),
    "vine_ppo(as it is)": tw.vine_ppo(standardize=False),
    "bilevel_gae(as it is, turn_discount=1)": tw.bilevel_gae(standardize=False, turn_discount=1.0),
    "bilevel_gae(as it is, decay=0.5)": tw.bilevel_gae(standardize=False, turn_discount=1.0, decay=0.5),
    "spo_chain(value)": tw.spo_chain(first="value"),
    "rose(alpha=1)": tw.rose(alpha=1.0),
    "treerl(zero)": tw.treerl(root="zero"),
    "spo_tree(path)": tw.spo_tree(count="path"),
    "hiper(discount=0.9)": tw.hiper(discount=0.9, action_decay=0.9),
    "hiper(as it is)": tw.hiper(standardize=False, unfinished="repeat", keep_penalty=0.0, change_penalty=0.0),
    "empg(scope=group)": tw.empg(scope="group"),
    "empg(rloo, bonus=0, center=False)": tw.empg(tw.rloo(), bonus=0.0, center=False),
    "empg(temperature=0)": tw.empg(temperature=0.0),
    "empg(rloo, all off)": tw.empg(tw.rloo(), temperature=0.0, bonus=0.0, center=False),
    "spae(rloo, weight=0)": tw.spae(tw.rloo(), weight=0.0),
    "hcapo(compared=turn)": tw.hcapo(compared="turn"),
    "hcapo(rloo, smoothing=0.5, spare=False)": tw.hcapo(tw.rloo(), smoothing=0.5, spare=False),
    "reinforce_pp(verl)": tw.reinforce_pp(convention="verl"),
    "reinforce_pp(discount=0.5)": tw.reinforce_pp(discount=0.5),
    "reinforce_pp_baseline(verl)": tw.reinforce_pp_baseline(convention="verl"),
    "gagpo(scale=False, decay=0)": tw.gagpo(discount=0.9, decay=0.0, scale=False),
    "gagpo(discount=1)": tw.gagpo(discount=1.0, decay=0.9),
    "rtmc(discount=1)": tw.rtmc(discount=1.0),
    "rtmc(scale)": tw.rtmc(scale=True),
    "rtmc(no prior)": tw.rtmc(discount=1.0, prior_count=0.0),
    "blup(noise=1)": tw.blup(noise=1.0),
    "graph_gpo(omega=0.5)": tw.graph_gpo(omega=0.5),
    "graph_gpo(verl-agent)": tw.graph_gpo(convention="verl-agent"),
    "hgpo(depth=0)": tw.hgpo(depth=0),
    "hgpo(scale=False, alpha=0)": tw.hgpo(scale=False, alpha=0.0),
    "hgpo(base_group)": tw.hgpo(base_group=True),
    "hgpo(verl-agent)": tw.hgpo(convention="verl-agent"),
    "hgpo(verl-agent, base_group)": tw.hgpo(convention="verl-agent", base_group=True),
    "trloo(discount=0.5)": tw.trloo(discount=0.5),
    "trloo(release)": tw.trloo(convention="release"),
    "advevo(scope=batch)": tw.advevo(scope="batch", whiten=False),
    "advevo(whiten)": tw.advevo(scope="group", whiten=True),
    "mars(by_role=False)": tw.mars(by_role=False),
    "mars(scope=batch)": tw.mars(scope="batch"),
    "mars(release)": tw.mars(convention="release"),
    "mars(release, whiten)": tw.mars(convention="release", whiten=True),
    "srgpo(release)": tw.srgpo(convention="release"),
    "proxmo(release)": tw.proxmo(convention="release"),
    "igpo(joint)": tw.igpo(normalise="joint"),
    "igpo(probability, discount=0.5)": tw.igpo(difference="probability", discount=0.5),
    "igpo(release)": tw.igpo(normalise="joint", convention="release"),
    "igpo(joint, curriculum)": tw.igpo(normalise="joint", curriculum=4),
    "istar(weight=0.5)": tw.istar(weight=0.5),
    "a2tgpo(logprob, discount=0.5)": tw.a2tgpo(difference="logprob", discount=0.5),
    "a2tgpo(release)": tw.a2tgpo(convention="release", discount=0.5),
    "infopo(temperature=1)": tw.infopo(temperature=1.0),
    "infopo(cope)": tw.infopo(temperature=1.0, gate="cope"),
    "infopo(release)": tw.infopo(temperature=1.0, convention="release"),
    "matchtir(discount=1)": tw.matchtir(discount=1.0, column=None),
    "matchtir(rewards)": tw.matchtir(column=None),
    "matchtir(release)": tw.matchtir(convention="release"),
    "unlikeliness(release)": tw.unlikeliness(convention="release"),
    "unlikeliness(skip_uniform=False)": tw.unlikeliness(skip_uniform=False),
    "r3(mixed)": tw.r3(max_reward=0.5, std_weight=2.0, eps=0.1, max_length=16, mixed=True),
    "canon(length)": tw.canon(metric="length"),
    "canon(mu=0.25)": tw.canon(mu=0.25),
    "canon(length, efficiency=0.9)": tw.canon(metric="length", efficiency=0.9),
    "canon(cosine)": tw.canon(schedule="cosine"),
    "canon(release)": tw.canon(convention="release"),
    "ngrpo(printed)": tw.ngrpo(convention="printed"),
    "ngrpo(release)": tw.ngrpo(convention="release"),
    "v05(unseen=0)": tw.v05(unseen=0.0),
    "v05(unseen=0, strength=2)": tw.v05(unseen=0.0, strength=2.0),
    "hapo(release)": tw.hapo(convention="release"),
    "arpo(hard)": tw.arpo(mode="hard"),
    "at2po(mean, both)": tw.at2po(children="mean", advantage="both"),
    "at2po(leaves, parent)": tw.at2po(children="leaves", advantage="parent"),
    "at2po(prompt)": tw.at2po(advantage="prompt"),
    "tree_grpo(inner)": tw.tree_grpo(inter=False),
    "tree_grpo(release)": tw.tree_grpo(convention="release"),
    "adora(vl)": tw.adora(convention="vl"),
    "adora(rloo, weight=1)": tw.adora(tw.rloo(), weight=1.0),
    "a_grae(release)": tw.a_grae(convention="release"),
    "a_grae(rloo, full_at=0.5)": tw.a_grae(tw.rloo(), full_at=0.5),
    "grpo_n(positive)": tw.grpo_n(sign="positive"),
    "d3s(over=responses)": tw.d3s(kept_frac=0.5, over="responses"),
    "d3s(schedule)": tw.d3s(kept_frac=1.0, first_frac=0.5, steps=3),
    "d3s(rloo, kept_frac=1)": tw.d3s(tw.rloo(), kept_frac=1.0),
    "ace(rloo, weight=0)": tw.ace(tw.rloo(), weight=0.0),
    "progrpo(only_correct)": tw.progrpo(weight=0.3, only_correct=True),
    "progrpo(rloo, weight=0)": tw.progrpo(tw.rloo(), weight=0.0),
    "verl_er(rloo)": tw.verl_er(tw.rloo()),
    "tp_grpo(release)": tw.tp_grpo(convention="release"),
    "g2po(weight=0)": tw.g2po(weight=0.0),
    "g2po(release)": tw.g2po(scale=False, convention="verl-agent"),
    "mt_grpo(cae)": tw.mt_grpo(estimator="cae"),
    "gtpo(group)": tw.gtpo(compared="group"),
    "trace_gold(window=0)": tw.trace_gold(window=0),
    "lotapo(group)": tw.lotapo(weight=0.5, compared="group"),
    "hygae(as it is)": tw.hygae(share=0.25, discount=0.9, standardize=False),
    "aepo(rloo)": tw.aepo(tw.rloo()),
    "opd(balance=1)": tw.opd(balance=1.0),
    **{f"aem({name})": tw.aem(base) for name, base in PUBLISHED.items() if name != "aem"},
    **{f"grpo({name})": tw.grpo(convention=name) for name in _conventions(GrpoConvention) if name != "turnwise"},
    **{f"rloo({name})": tw.rloo(convention=name) for name in _conventions(RlooConvention) if name != "turnwise"},
    **{
        f"gigpo({name}, scale={scale})": tw.gigpo(convention=name, scale=scale)
        for name in _conventions(GigpoConvention)
        if name != "turnwise"
        for scale in (True, False)
    },
}

ALL: dict[str, tw.Transform] = PUBLISHED | VARIANTS

BLOCK_TRIAL: dict[str, dict] = {
    "reward_remembered_nearness": {"omega": 0.2},
    "value_next_state": {"return_discount": 0.9},
    "weigh_by_evidence": {"tau": 4.0},
    "add_turn_drop": {"weight": 0.5, "same": "trajectory"},
    "add_confidence_gap": {"weight": 0.3},
    "amplify_sure_errors": {"weight": 1.0},
    "keep_extremes": {"kept_frac": 0.5},
    "match_dose": {"share": 0.5},
    "standardize_with_virtual": {"value": 100.0},
    "rank_failures": {"max_reward": 0.5},
    "sum_td_errors_of_states": {"discount": 0.9, "decay": 0.5},
    "scalarize": {"weights": {"step_reward": 0.5, "confidence": -1.0}},
}
"""Values for the options of blocks that have no default."""


def family(*names: str) -> set[str]:
    """Methods, their variants, and what AEM makes of them."""
    return {
        full for full in ALL for name in names if full == name or full.startswith(f"{name}(") or full == f"aem({name})"
    }


BY_RESPONSE = family(
    "gae",
    "archer",
    "ppo",
    "turn_ppo",
    "bilevel_gae",
    "hygae",
    "vetta",
    "opd",
    "egae",
    "vine_ppo",
    "spo",
    "spo_chain",
    "hiper",
    "tp_grpo",
    "spae",
    "hcapo",
    "empg",
) - {
    "empg(rloo, bonus=0, center=False)",
    "empg(rloo, all off)",
}
"""Credit that does not come from comparing the returns of trajectories alone."""

KEEP_LONE = {name for name in ALL if "verl" in name and "verl_er" not in name} | {
    "canon(release)",
    "ngrpo(release)",
    "tree_grpo(release)",
}
"""Conventions in which a lone member keeps its raw return."""

EXCEPT: dict[str, dict[str, set[str]]] = {
    "rows may come in any order": {
        "the permutation depends on the order of the rows": {"aem(shuffle)"},
        "a trajectory is compared with those before it": family("rae"),
        "of equal trajectories the earlier fall in the lower half": {"canon(release)"},
        "the first text of a cluster stands for it": {"gigpo(similarity=0.9)"},
        "of equal turning points the earlier are paid": {"tp_grpo(release)"},
        "the lot depends on the order of the rows": family("d3s"),
        "which responses are dealt together depends on the order of the rows": family("srgpo"),
    },
    "a lone trajectory gets nothing": {
        "it compares nothing": family("reinforce"),
        "the convention keeps the raw return of a lone member": KEEP_LONE,
        "the convention keeps the raw return of a turn that nobody else reached": {"trloo(release)"},
        "it compares with a prior": {"v05(unseen=0)", "v05(unseen=0, strength=2)"},
        "it compares with earlier trajectories": family("rae"),
        "it compares the turns of a trajectory with each other": {
            *family("mars", "mica", "proxmo", "istar", "rtmc"),
            "gigpo(similarity=0.9)",
        },
        "it compares responses of the whole batch": family("srgpo", "reinforce_pp"),
        "it compares trajectories of the whole batch": {"advevo(scope=batch)", "advevo(whiten)"},
        "it compares with values, or adds what the single response did": (
            BY_RESPONSE - {*family("tp_grpo"), "hcapo(compared=turn)"}
        ),
        "the convention keeps the raw return of a lone trajectory or turn": {"matchtir(release)"},
        "it compares the gains of a trajectory's turns with each other": family("igpo", "infopo", "lotapo"),
        "it compares edges, states or progress within a trajectory": {
            *family("g2po", "tigpo", "procredit"),
            "gtpo(group)",
        },
        "it pays for gains of the gold answer as they are": family("trace_gold"),
    },
    "equal returns get nothing": {
        "it compares nothing": family("reinforce"),
        "it compares with earlier trajectories": family("rae"),
        "the same return counts less in one half": {"canon(length, efficiency=0.9)"},
        "it adds a bonus in groups of mixed success": family("progrpo"),
        "the convention keeps the raw return of a lone member": KEEP_LONE,
        "the convention keeps the raw return of a turn that nobody else reached": {"trloo(release)"},
        "it compares single responses as well": family(
            "gigpo",
            "gagpo",
            "graph_gpo",
            "hgpo",
            "proxmo",
            "mica",
            "srgpo",
            "istar",
            "rtmc",
            "pgpo",
            "g2po",
            "ecpo",
            "tigpo",
            "gtpo",
            "procredit",
        ),
        "it discounts, or compares rewards before they are summed": {
            "trloo(discount=0.5)",
            "mars(release)",
            "mars(release, whiten)",
            "reinforce_pp(discount=0.5)",
        },
        "it compares with values, or adds what the single response did": BY_RESPONSE,
        "it discounts the returns of single turns": {"matchtir(rewards)"},
        "it reads the rewards of tool calls": family("matchtir") - {"matchtir(discount=1)", "matchtir(rewards)"},
        "it pays for information as well": family("igpo", "infopo", "a2tgpo", "trace_gold", "lotapo"),
        "it reads the rewards of turns": family("mt_grpo"),
        "it reads the success or the rank, not the return": family("unlikeliness", "arena_rl", "r3", "ngrpo", "v05"),
    },
}
"""Law to reasons to names."""


def held_to(law: str) -> list[str]:
    """Names of the methods that a law holds for."""
    return sorted(ALL.keys() - set().union(*EXCEPT[law].values()))


SKEWED = (
    family("canon", "ngrpo", "v05", "hapo", "arpo", "adora", "a_grae", "grpo_n", "ace", "progrpo", "verl_er")
    - {"canon(length, efficiency=0.9)"}
    - KEEP_LONE
)
"""Blind to a bonus for all of a prompt; but its credit need not sum to 0, or be the same for all turns."""

EPISODE = (
    SKEWED
    | family("grpo", "rloo", "dr_grpo", "unlikeliness", "arena_rl", "r3")
    | {
        "advevo",
        "aem",
        "aem(temperature=-1)",
        "aem(temperature=0)",
        "aem(scope=trajectory)",
        "aem(scope=batch)",
        "aem(shuffle)",
    }
) - KEEP_LONE
"""Compare whole trajectories only, one value each, all turns alike (AEM's coefficient aside)."""

UNMODULATED = {name for name in EPISODE if "aem" not in name or name == "aem(temperature=0)"} - SKEWED | {"arpo"}
"""Those that give every response of a trajectory the same."""
