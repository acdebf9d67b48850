"""Every method and variant that the tables of laws are run over. A new entry of METHODS joins by itself."""

import turnwise as tw
from turnwise.methods.gigpo import Convention as GigpoConvention
from turnwise.methods.grpo import Convention as GrpoConvention
from turnwise.methods.rloo import Convention as RlooConvention


def _conventions(literal) -> tuple[str, ...]:
    return literal.__args__


PUBLISHED: dict[str, tw.Transform] = {name: make() for name, make in tw.METHODS.items()}

VARIANTS: dict[str, tw.Transform] = {
    "reinforce(discount=0.5)": tw.reinforce(discount=0.5),
    "gigpo(scale=False)": tw.gigpo(scale=False),
    "gigpo(scale=False, weight=0)": tw.gigpo(scale=False, weight=0.0),
    "gigpo(discount=1)": tw.gigpo(discount=1.0),
    "aem(temperature=-1)": tw.aem(temperature=-1.0),
    "aem(temperature=0)": tw.aem(temperature=0.0),
    "aem(scope=trajectory)": tw.aem(scope="trajectory"),
    "aem(scope=batch)": tw.aem(scope="batch"),
    "aem(shuffle)": tw.aem(shuffle=True),
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

KEEPS_LONE = {name for name in ALL if "verl" in name}  # a lone member keeps its raw return
COMPARES_NOTHING = {name for name in ALL if "reinforce" in name}
WHOLE_BATCH = {"aem(scope=batch)", "aem(shuffle)"}  # one group's credit depends on the others' entropies
SHUFFLED = {"aem(shuffle)"}  # the permutation depends on the order of the rows
STEPWISE = {name for name in ALL if "gigpo" in name}  # compares single responses as well
BY_RESPONSES = {name for name in ALL if "verl-agent" in name}  # long trajectories weigh more in the mean
EPISODE = {
    name: method for name, method in ALL.items() if name not in COMPARES_NOTHING | STEPWISE | BY_RESPONSES
}  # compare whole trajectories only
