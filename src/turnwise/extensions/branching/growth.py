"""Define branching rules: where a group of trajectories forks, and how often.

A rule is a generator. It yields the trajectories that it wants next, receives them once they are played, and ends when
the group is complete. Imports NumPy only, so that recipes are checked fast.
"""

import inspect
import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pydantic

from turnwise.base.errors import ConfigError, did_you_mean
from turnwise.credit.options import check_names
from turnwise.extensions.branching.forks import Fork, ForkGroup, Growth
from turnwise.extensions.branching.token_growth import rose, spo_tree, treerl
from turnwise.rollout.trajectory import Trajectory, Turn


def arpo(
    group: ForkGroup,
    *,
    initial: int | None = None,
    probability: float = 0.5,
    entropy_weight: float = 0.2,
    first_tokens: int = 20,
) -> Growth:
    """Fork after an observation where the policy has become more uncertain than at the start of the trajectory.

        H_t = sum of the token entropies of the first `first_tokens` tokens of response t / log(vocabulary)
        fork after response t if clip(u - entropy_weight (H_t - H_0), 0, 1) <= probability,   u ~ U(0, 1)

    The loop of the released code: in each round every unfinished trajectory gives one response, and may then fork once.
    H_0 is that of the first response that a trajectory gave itself. A group without an unfinished trajectory starts a
    new one. The group has `rollout.group_size` trajectories at the end. The code sums over the ten most likely tokens;
    we use the whole distribution.

    Args:
        group: Size and draws of the group.
        initial: Trajectories from the start; default: half of the group.
        probability: Probability of a fork where the entropy has not changed.
        entropy_weight: How much a rise of the entropy adds to it.
        first_tokens: Tokens of a response that count.

    Raises:
        ConfigError: `initial` exceeds the group, or is below 1.

    Reference: ARPO, Dong et al., arXiv 2507.19849; released code RUC-NLPIR/ARPO.
    """
    initial = max(1, group.size // 2) if initial is None else initial
    if not 1 <= initial <= group.size:
        raise ConfigError(
            f"rollout.collector.initial={initial}: expected 1 to rollout.group_size={group.size} trajectories"
        )

    def uncertainty(turn: Turn) -> float:
        if turn.behavior_entropies is None:
            raise ConfigError(
                "rollout.collector.rule='arpo' needs an engine that reports entropies; set engine.name=local"
            )
        return sum(turn.behavior_entropies[:first_tokens]) / math.log(group.vocabulary)

    def grow() -> Growth:
        paths = yield [None] * initial
        begun, now = [0] * initial, 0  # round of the first response of each trajectory, and the current one
        while len(paths) < group.size:
            unfinished, wanted = False, []
            for number, path in enumerate(paths):
                turn = now - begun[number]
                if not path.shared <= turn < len(path.turns) - 1:  # not begun, or its last response
                    continue
                unfinished = True
                if len(paths) + len(wanted) == group.size:
                    continue
                rise = uncertainty(path.turns[turn]) - uncertainty(path.turns[path.shared])
                chance = group.generator.random() - entropy_weight * rise
                if min(max(chance, 0.0), 1.0) <= probability:
                    wanted.append(Fork(number, turn + 1))
            begun += [begun[fork.parent] for fork in wanted]
            now += 1
            if wanted or not unfinished:
                begun += [] if wanted else [now]
                paths = yield wanted or [None]

    return grow()


def tree_grpo(group: ForkGroup, *, trees: int = 2, expand: int = 2, rounds: int = 1) -> Growth:
    """Grow trees at random turns.

    Play `trees` trajectories from the start. Then, `rounds` times, draw `expand` nodes of each tree uniformly and with
    replacement, from its root and all responses that do not end a trajectory, and continue from each.

    The paper then keeps some leaves of each tree; with its numbers, the defaults, it keeps all, as this rule does.

    Args:
        group: Size and draws of the group; the size must be `trees * (1 + expand * rounds)`.
        trees: Trees per group.
        expand: Nodes to expand per tree and round.
        rounds: Rounds of expansion.

    Raises:
        ConfigError: The numbers do not give `rollout.group_size`, or one is below 1.

    Reference: Tree-GRPO, arXiv 2509.21240; released code AMAP-ML/Tree-GRPO.
    """
    if min(trees, expand, rounds) < 1:
        raise ConfigError(f"rollout.collector: trees={trees}, expand={expand} and rounds={rounds} must be 1 or more")
    if (total := trees * (1 + expand * rounds)) != group.size:
        raise ConfigError(
            f"rollout.group_size={group.size}, but rule 'tree_grpo' plays trees * (1 + expand * rounds) = {total} "
            f"trajectories per group; set rollout.group_size={total}"
        )

    def grow() -> Growth:
        paths = yield [None] * trees
        for _ in range(rounds):
            wanted = []
            for tree in range(trees):
                nodes = _nodes(
                    [number for number, path in enumerate(paths) if path.tree == tree and path.usable], paths
                )
                if nodes:  # otherwise its trajectories are lost
                    wanted += [nodes[at] for at in group.generator.integers(len(nodes), size=expand)]
            if wanted:
                paths = yield wanted

    return grow()


def at2po(group: ForkGroup, *, rounds: int = 2, expand: int = 6, sibling_cost: float = 0.05) -> Growth:
    """Sample the most uncertain responses of the group again.

    Play trajectories from the start. Then, `rounds` times, take the `expand` responses with the highest

        mean of -log p over its tokens - sibling_cost * (children of its parent - 1)

    and fork right before each. The last response of a trajectory, a leaf of the tree, is not sampled again. The prompt
    is one of the candidates, with a surprise of 0 and its own children as siblings: a trajectory starts from the start.
    If there are fewer candidates than `expand`, the list is repeated, best first. The children of a response are
    the responses that follow it in any trajectory; those of the prompt are all first responses, since the group is one
    tree.

    Args:
        group: Size of the group; what `rounds * expand` leaves of it starts from the start.
        rounds: Rounds of expansion.
        expand: Responses to sample again in each round.
        sibling_cost: Nats by which each sibling lowers a response.

    Raises:
        ConfigError: The numbers leave no trajectory to start from, or one is below 1.

    Reference: AT2PO, arXiv 2601.04767; released code zzfoutofspace/ATPO. Its 10 starts make a group of 22.
    """
    if min(rounds, expand) < 1:
        raise ConfigError(f"rollout.collector: rounds={rounds} and expand={expand} must be 1 or more")
    if (starts := group.size - rounds * expand) < 1:
        raise ConfigError(
            f"rollout.group_size={group.size}, but rule 'at2po' forks rounds * expand = {rounds * expand} times; set "
            f"rollout.group_size={rounds * expand + 1} or more, or lower expand"
        )

    def grow() -> Growth:
        paths = yield [None] * starts
        for _ in range(rounds):
            nodes = [
                (Fork(number, turn), path.turns[turn], path.turns[turn - 1] if turn else None)
                for number, path in enumerate(paths)
                if path.usable
                for turn in range(path.shared, len(path.turns))
            ]
            children = Counter(id(parent) for _, _, parent in nodes)
            scored: list[tuple[float, Fork | None]] = [
                (_surprise(turn) - sibling_cost * (children[id(parent)] - 1), fork)
                for fork, turn, parent in nodes
                if fork.turn < len(paths[fork.parent].turns) - 1
            ]
            scored.append((-sibling_cost * (children[id(None)] - 1), None))
            if nodes:  # otherwise all trajectories are lost
                best = [fork for _, fork in sorted(scored, key=lambda one: one[0], reverse=True)]
                paths = yield list(itertools.islice(itertools.cycle(best), expand))

    return grow()


def carl(group: ForkGroup, *, starts: int = 8) -> Growth:
    """Fork at the states where the policy is unsure and has tried little, one fork at a time.

    Play `starts` trajectories from the start. Then, until the group is complete, fork at the state s with the largest

        h(s) / n(s)        h(s) = mean of -log p over the tokens of a response, averaged over those tried at s

    and continue from there. `n(s)` counts the tries at s, including lost forks. A state is a
    history; the first responses of all trajectories are tried at the prompt. Each fork is a separate wave, since the
    next one depends on its outcome.

    Args:
        group: Size of the group; the paper has 16 forks.
        starts: Trajectories from the start; the paper has 8, and 1 for its light form.

    Raises:
        ConfigError: The group leaves no fork, or `starts` is below 1.

    Reference: CARL, arXiv 2512.04949. That the starts share the prompt as one state is our reading.
    """
    if not 1 <= starts < group.size:
        raise ConfigError(
            f"rollout.collector.starts={starts}: expected 1 to {group.size - 1}, since rule 'carl' forks with the rest "
            f"of rollout.group_size={group.size}; set rollout.group_size={max(starts, 1) + 16} for the paper's 16 forks"
        )

    def grow() -> Growth:
        paths = yield [None] * starts
        lost: Counter[int | None] = Counter()
        while len(paths) < group.size:
            place: dict[int | None, Fork] = {}  # state, by the response before it, to where it was reached
            tried: defaultdict[int | None, list[float]] = defaultdict(list)
            for number, path in enumerate(paths):
                for turn in range(path.shared, len(path.turns)) if path.usable else ():
                    state = id(path.turns[turn - 1]) if turn else None
                    place.setdefault(state, Fork(number, turn))
                    tried[state].append(_surprise(path.turns[turn]))
            if not tried:
                return  # nothing was played that can be forked
            score = {state: np.mean(found) / (len(found) + lost[state]) for state, found in tried.items()}
            best = max(score, key=lambda state: score[state])
            paths = yield [place[best]]
            lost[best] += not paths[-1].usable

    return grow()


def v05(
    group: ForkGroup, *, initial: int = 4, cost: float = 0.0039, unseen: float | None = None, strength: float = 0.0
) -> Growth:
    """Add trajectories to a group one by one while its baseline gains from them; none of them forks.

        D = max(0, (v - V)^2 - 1/k)         squared bias of the prior V beyond the variance of v, as in method `v05`
        risk(k) = D / (k D + 1)             squared error of the baseline between v and V with the best weight
        play another one while risk(k) - risk(k + 1) > cost

    Here v is the mean of 2 * success - 1 over the group's k trajectories, without lost ones. The prior V is the mean
    of the same over earlier trajectories of the task. So a group ends early where its outcomes agree with its past.
    A task without V has risk(k) = 1/k. `rollout.group_size` is the largest group, 16 in the paper.

    We know only the form of the paper's look-ahead, risk plus cost per trajectory; this risk is ours. So is the prior,
    which the paper takes from a separate model.

    Args:
        group: Size of the largest group, and history of its task.
        initial: Trajectories to begin with.
        cost: Minimum gain of a further trajectory.
        unseen: V of a task without history, from -1 to 1; as in method `v05`, whose options should be the same.
        strength: Trajectories that `unseen` counts as once there is a history; as in method `v05`.

    Raises:
        ConfigError: `initial` is below 3 or above the group's size, `cost` is negative, or the prior's options are
            impossible.

    Reference: V_0.5, arXiv 2603.10848, which says that groups of 2 diverge. No code is public.
    """
    if not 3 <= initial <= group.size:
        raise ConfigError(
            f"rollout.collector.initial={initial}: expected 3 to rollout.group_size={group.size} trajectories"
        )
    if cost < 0:
        raise ConfigError(f"rollout.collector.cost={cost:g}: expected 0 or more")
    if unseen is not None and not -1 <= unseen <= 1:
        raise ConfigError(f"rollout.collector.unseen={unseen:g}: expected -1 to 1")
    if strength < 0 or (strength and unseen is None):
        raise ConfigError(
            f"rollout.collector.strength={strength:g} with unseen={unseen}: expected 0, or more with unseen"
        )
    played, succeeded = group.history
    prior = unseen
    if played:
        prior = (2 * succeeded - played + strength * (unseen or 0.0)) / (played + strength)

    def grow() -> Growth:
        paths = yield [None] * initial
        while len(paths) < group.size:
            outcomes = [2.0 * path.success - 1.0 for path in paths if path.usable]
            if outcomes and gain_of_another(outcomes, prior) <= cost:
                break
            paths = yield [None]

    return grow()


def _surprise(turn: Turn) -> float:
    """Return the mean of -log p over the tokens of a response (nats)."""
    return -sum(turn.behavior_logprobs) / len(turn.behavior_logprobs)


def gain_of_another(outcomes: Sequence[float], prior: float | None) -> float:
    """Compute how much another trajectory lowers the risk of a group's baseline; see `v05`.

    Args:
        outcomes: 1 or -1 for each trajectory so far, at least one.
        prior: V; None: there is none.
    """
    k = len(outcomes)
    if prior is None:
        return 1 / k - 1 / (k + 1)
    excess = max(0.0, (sum(outcomes) / k - prior) ** 2 - 1 / k)
    return excess / (k * excess + 1) - excess / ((k + 1) * excess + 1)


def _nodes(members: Sequence[int], paths: Sequence[Trajectory]) -> list[Fork]:
    """List the root of a tree and its responses that do not end a trajectory, each once."""
    root = [Fork(members[0], 0)] if members else []
    own = [range(paths[number].shared + 1, len(paths[number].turns)) for number in members]
    return root + [Fork(number, turn) for number, turns in zip(members, own, strict=True) for turn in turns]


RULES: dict[str, Callable[..., Growth]] = {
    rule.__name__: rule for rule in (arpo, tree_grpo, at2po, carl, v05, spo_tree, treerl, rose)
}
"""Branching rules by the name that `rollout.collector.rule` takes."""


def check_rule(name: str, options: Mapping[str, Any], size: int) -> None:
    """Check the name and the options of a rule.

    Args:
        name: Name in `RULES`.
        options: Its options.
        size: `rollout.group_size`.

    Raises:
        ConfigError: The rule or an option is unknown, of the wrong type, or does not fit the size.
    """
    if not isinstance(name, str):
        raise ConfigError(f"rollout.collector.rule={name!r}: expected the name of a rule, such as 'tree_grpo'")
    if name not in RULES:
        raise ConfigError(f"unknown rollout.collector.rule {name!r}.{did_you_mean(name, RULES)}")
    known = {p.name: p for p in inspect.signature(RULES[name]).parameters.values() if p.kind is p.KEYWORD_ONLY}
    check_names(f"rollout.collector.rule={name!r}", options, (*known, "max_tokens", "max_env_steps"))
    for option, value in options.items():
        try:
            pydantic.TypeAdapter(known[option].annotation).validate_python(value, strict=True)
        except pydantic.ValidationError as error:
            raise ConfigError(f"rollout.collector.{option}={value!r}: {error.errors()[0]['msg']}") from None
    RULES[name](ForkGroup(size), **options)
