"""HiPER: credit of actions, subgoals and decisions from values."""

from fractions import Fraction as F

from tests.golden.exact import advantages, case, nested, population_z

# trajectories of 4, 2 and 1 turns; segments 2 + 2, 1 + 1, 1
GOAL_REWARD = [[[F(0), F(1, 2), F(0), F(1)], [F(0), F(-1, 4)], [F(1)]]]
SWITCH = [[[F(0), F(0), F(1), F(0)], [F(1), F(1)], [F(0)]]]
LOW = [[[F(1, 2), F(3, 4), F(1, 2), F(3, 4)], [F(1, 4), F(0)], [F(1, 2)]]]
HIGH = [[[F(3, 4), F(9), F(1, 2), F(9)], [F(1, 2), F(1, 4)], [F(1, 4)]]]  # the nines are not read
DECIDE = [[[F(1, 2), F(1, 2), F(1, 4), F(1)], [F(1, 2), F(1, 4)], [F(3, 4)]]]
GOALS = {"reward": GOAL_REWARD, "switch": SWITCH, "value_low": LOW, "value_high": HIGH, "value_switch": DECIDE}


def cut_at_switches(n):
    """Turns of each segment of a trajectory of the example."""
    starts = [t for t, switch in enumerate(SWITCH[0][n]) if t == 0 or switch]
    return [range(a, b) for a, b in zip(starts, [*starts[1:], len(SWITCH[0][n])], strict=True)]


def streams(discount, action_decay, subgoal_decay, ends_low=(F(0),) * 3, ends_high=(F(0),) * 3):
    """The card's three streams: actions, subgoals (None where none begins), decisions."""
    actions, subgoals, decisions = [], [], []
    for n, rewards in enumerate(GOAL_REWARD[0]):
        segments = cut_at_switches(n)
        highs = [HIGH[0][n][segment[0]] for segment in segments]
        low, decided, errors, lengths = [], [], [], []
        for k, segment in enumerate(segments):
            is_last = k + 1 == len(segments)
            boot_low = ends_low[n] if is_last else highs[k + 1]
            boot_high = ends_high[n] if is_last else highs[k + 1]
            inside = [rewards[t] for t in segment]
            low += advantages(inside, [LOW[0][n][t] for t in segment], discount, action_decay, boot_low)
            for j in range(len(segment)):
                left = len(segment) - j
                value = (
                    sum((discount**i * r for i, r in enumerate(inside[j:])), start=F(0)) + discount**left * boot_high
                )
                decided.append(value - DECIDE[0][n][segment[j]])
                if j == 0:
                    errors.append(value - highs[k])
                    lengths.append(left)
        planned = [None] * len(rewards)
        for k, segment in enumerate(segments):
            weight, total = F(1), F(0)
            for error, length in zip(errors[k:], lengths[k:], strict=True):
                total += weight * error
                weight *= discount**length * subgoal_decay
            planned[segment[0]] = total
        actions.append(low)
        subgoals.append(planned)
        decisions.append(decided)
    return [actions], [subgoals], [decisions]


# which part of its response each token belongs to: 0 the decision, 1 the subgoal, 2 the action. The fourth and the
# fifth response have no decision, the sixth states no subgoal, the last has an action alone.
PART = [[[[0, 1, 2, 2], [0, 1, 2], [0, 1, 1, 2], [1, 2, 2]], [[1, 2], [0, 2]], [[2]]]]


def on_parts(parts, standardised):
    """Credit of every token, `[trajectory][turn][token]`: that of its part; 0 on a subgoal that does not begin.

    `parts` are the streams of actions, subgoals and decisions; a stream counts for the turns with a token of its part.
    """
    actions, subgoals, decisions = parts
    tables = []
    for number, stream in enumerate((decisions, subgoals, actions)):
        own = [
            [v if number in PART[0][n][t] else None for t, v in enumerate(turns)] for n, turns in enumerate(stream[0])
        ]
        present = [v for turns in own for v in turns if v is not None]
        z = iter(population_z(present, 1e-8) if standardised else present)
        tables.append([[0 if v is None else next(z) for v in turns] for turns in own])
    return [
        [[float(tables[part][n][t]) for part in tokens] for t, tokens in enumerate(turns)]
        for n, turns in enumerate(PART[0])
    ]


def hiper_case(name, equation, rtol, per_token, columns, **options):
    """A case with the credit of every token; that of a response is the mean over its tokens."""
    source = "arXiv 2602.16165, code JonP07/HiPER-agent, card HiPER"
    expected = [[[sum(own) / len(own) for own in turns] for turns in per_token]]
    made = case(name, source, equation, rtol, "hiper", nested(**columns, part_T=PART), expected, **options)
    return made | {"expected_T": [a for turns in per_token for own in turns for a in own]}


def hiper_cases():
    """Each stream on the tokens of its part; raw streams; penalties."""
    actions, subgoals, decisions = streams(F(1), F(1), F(95, 100))
    # first segment of the first trajectory: 0 + 1/2 + V_high 1/2 - 1/2, then 1/2 + 1/2 - 3/4
    # the second: 1 - 1/2, 1 - 3/4
    assert actions[0] == [[F(1, 2), F(1, 4), F(1, 2), F(1, 4)], [F(0), F(-1, 4)], [F(1, 2)]]
    # subgoals: delta = 1/2 + 1/2 - 3/4 = 1/4 and 1 - 1/2 = 1/2; A = 1/4 + 0.95 / 2. Second: -1/4 and -1/2. Third: 3/4.
    assert subgoals[0] == [[F(1, 4) + F(19, 40), None, F(1, 2), None], [F(-1, 4) - F(19, 40), F(-1, 2)], [F(3, 4)]]
    assert decisions[0] == [[F(1, 2), F(1, 2), F(3, 4), F(0)], [F(-1, 4), F(-1, 2)], [F(1, 4)]]
    free = {"keep_penalty": 0.0, "change_penalty": 0.0}

    finished = [[[F(0)] * 4, [F(1)] * 2, [F(0)]]]
    lows, highs = (F(3, 4), F(0), F(1, 2)), (F(1, 2), F(0), F(1, 4))
    cut = streams(F(9, 10), F(1, 2), F(4, 5), lows, highs)

    # one segment of four turns, kept three times: -0.3 / 4 each; the third turn states another subgoal: -0.3 more
    kept = {
        "reward": [[[F(0), F(0), F(0), F(1)]]], "switch": [[[F(1), F(0), F(0), F(0)]]],
        "value_low": [[[F(0)] * 4]], "value_high": [[[F(1, 2)] * 4]], "value_switch": [[[F(0)] * 4]],
        "subgoal_changed": [[[F(0), F(0), F(1), F(0)]]],
    }  # fmt: skip
    to_go = [F(1) - F(9, 40) - F(3, 10), F(1) - F(9, 40) - F(3, 10), F(1) - F(6, 40) - F(3, 10), F(1) - F(3, 40)]
    fined = [[[a] if t else [to_go[0], to_go[0] - F(1, 2), a] for t, a in enumerate(to_go)]]
    return [
        hiper_case(
            "each advantage on the tokens of its part",
            "z of each stream over the turns with tokens of it; subgoals where they begin",
            1e-12,
            on_parts((actions, subgoals, decisions), standardised=True),
            GOALS,
            **free,
        ),
        hiper_case(
            "raw, discounted, cut off",
            "V of itself after a cut (bootstrap_truncated)",
            1e-13,
            on_parts(cut, standardised=False),
            GOALS | {"finished": finished},
            discount=0.9,
            action_decay=0.5,
            subgoal_decay=0.8,
            standardize=False,
            unfinished="repeat",
            **free,
        ),
        case(
            "penalties for keeping and for changing a kept subgoal, by hand",
            "arXiv 2602.16165, code JonP07/HiPER-agent, card HiPER",
            "r_t - 0.3 / 4 on three keeps, - 0.3 on the one that changes; return to go minus value",
            1e-13,
            "hiper",
            nested(**kept, part_T=[[[[0, 1, 2], [2], [2], [2]]]]),
            [[[sum(own, start=F(0)) / len(own) for own in fined[0]]]],
            standardize=False,
        ),
    ]


TABLES = {"hiper": hiper_cases}
