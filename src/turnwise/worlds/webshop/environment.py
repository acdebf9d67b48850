"""Play WebShop: one visit to the shop."""

import functools
import itertools
import re
from collections.abc import Collection, Iterator
from typing import Any, Literal

from turnwise.base.errors import ConfigError, EnvironmentFault
from turnwise.environments.base import Step
from turnwise.environments.needs import check_choices
from turnwise.worlds.webshop.goals import Goal
from turnwise.worlds.webshop.pages import plain_text, rich_text
from turnwise.worlds.webshop.shop import Shop, Visit

TITLE_WORDS = 4
"""Words shown of a title or another long text."""

_ACTION = re.compile(r"(search|click) *\[(.+)\]")


def short_text(visit: Visit) -> str:
    """Render the observation of mode "text_short".

    The search page shows the instruction, which other pages do not repeat. Results show product ids with the first
    words of the titles; a product shows its options and its price. A chosen option shows only its value. Buttons are
    omitted, because they are the same on all pages of a kind. The text is in lower case, as actions are, because "B0"
    and "b0" are different words to the policy.
    """
    return " ; ".join(_parts(visit)).lower()


def spaceless(text: str) -> str:
    """Remove white space, since word-level policies write more of it."""
    return "".join(text.split())


def respaced(action: str, targets: Collection[str]) -> str:
    """Correct the white space of an action.

    A word-level policy writes "click [ x - large ]", the shop expects "click[x-large]".
    """
    match = _ACTION.fullmatch(action)
    if match is None:
        return action
    name, argument = match[1], match[2].strip()
    if name == "click" and argument not in targets:
        squeezed = spaceless(argument)
        argument = next((text for text in targets if spaceless(text) == squeezed), argument)
    return f"{name}[{argument}]"


def _parts(visit: Visit) -> Iterator[str]:
    if visit.page == "search":
        yield visit.goal.instruction
    elif visit.page == "item" and visit.product:
        for name, values in visit.product.options.items():
            yield f"{name}: {visit.chosen.get(name) or ', '.join(values)}"
        yield visit.product.price_tag
    elif visit.page == "results":
        for node, following in itertools.pairwise(visit.nodes):
            if node.kind == "link":
                yield f"{node.text} {_beginning(following.text)}"
    else:
        yield from (_beginning(node.text) for node in visit.nodes if node.kind == "text")


def _beginning(text: str) -> str:
    return " ".join(text.split()[:TITLE_WORDS])


_REMOVED = str.maketrans("[]\n", "   ")
CHOICES = {
    "observation": ("text", "text_rich", "text_short"),
    "reward": ("success", "score"),
    "state_key": ("observation", "state"),
}


class WebshopEnvironment:
    """One trajectory in the shop.

    A response is an action; surrounding white space is ignored. An action that the page does not offer changes nothing,
    counts as a step and is marked invalid. Buying ends the trajectory; ending without a purchase is a failure.

    Args:
        shop: The shop.
        goal: The goal of the purchase.
        max_steps: The trajectory is truncated after this many steps.
        success_reward: The reward of a perfect purchase.
        reward: "success": a purchase with score 1 earns `success_reward`, all others nothing, as in verl-agent and the
            papers that use it; "score": every purchase earns its score times `success_reward`.
        observation: "text": the page's texts with [SEP] between them; "text_rich": one line per text, with marked
            buttons; "text_short": only what is new on a page, for a word-level policy; white space in actions is then
            ignored. See `turnwise.worlds.webshop.environment`.
        attributes_page: Offer the page that lists a product's attributes, which reveals most goals. The original hides
            it too.
        state_key: State key for credit that compares equal states: "observation", its text; "state", the page with the
            search and the chosen options (in mode "text", a chosen option is not visible).
    """

    def __init__(
        self,
        shop: Shop,
        goal: Goal,
        *,
        max_steps: int = 15,
        success_reward: float = 10.0,
        reward: Literal["success", "score"] = "success",
        observation: Literal["text", "text_rich", "text_short"] = "text",
        attributes_page: bool = False,
        state_key: Literal["observation", "state"] = "observation",
    ):
        check_choices(CHOICES, observation=observation, reward=reward, state_key=state_key)
        if max_steps < 1:
            raise ConfigError(f"max_steps is {max_steps}; it must be at least 1.")
        self.shop, self.goal = shop, goal
        self.max_steps, self.success_reward, self.reward = max_steps, success_reward, reward
        self.observation, self.state_key = observation, state_key
        self._visit_shop = functools.partial(Visit, shop, goal, with_attributes=attributes_page)
        self._visit: Visit | None = None
        self._steps = 0
        self._ended = False

    def start(self) -> Step:
        """Start at the search page, which shows the instruction."""
        self._visit, self._steps, self._ended = self._visit_shop(), 0, False
        return self._answer(self._visit)

    def step(self, response: str) -> Step:
        """Play an action; before `start` and after the end, raise an `EnvironmentFault`."""
        visit = self._visit
        if visit is None or self._ended:
            raise EnvironmentFault(
                f"step() {'after the end' if self._ended else 'before start()'} of goal {self.goal.number}."
            )
        valid = visit.act(understood(response, visit, self.observation))
        self._steps += 1
        bought = visit.score is not None
        truncated = not bought and self._steps >= self.max_steps
        self._ended = bought or truncated
        score = visit.score.total if visit.score else 0.0
        share = score if self.reward == "score" else float(score == 1)
        return self._answer(
            visit, reward=self.success_reward * share, terminated=bought, truncated=truncated, valid=valid
        )

    def _answer(self, visit: Visit, **outcome: Any) -> Step:
        info: dict[str, Any] = {"success": False, "score": 0.0, "task_type": self.goal.category}
        if visit.score:
            score = visit.score
            info |= {
                "success": score.total == 1,
                "score": score.total,
                "score_type": score.type,
                "score_price": score.price,
            }
            info |= {
                "score_attributes": score.attributes,
                "score_options": score.options,
                "bought": visit.product and visit.product.asin,
            }
        return Step(
            observation=self._read(visit),
            state_key=visit.state if self.state_key == "state" else None,
            admissible=admissible(visit),
            info=info,
            **outcome,
        )

    def _read(self, visit: Visit) -> str:
        if self.observation == "text_rich":
            return rich_text(visit.nodes, visit.keywords, visit.chosen, visit.visited)
        return short_text(visit) if self.observation == "text_short" else plain_text(visit.nodes)


def understood(response: str, visit: Visit, observation: str) -> str:
    """Return the action that a response is, without white space that a mode of observation ignores."""
    action = response.strip()
    return respaced(action, visit.targets) if observation == "text_short" else action


def search_action(keywords: str) -> str:
    """Format a search; brackets are removed, because the shop would read another action, and searches ignore them."""
    return f"search[{keywords.translate(_REMOVED)}]"


def can_be_clicked(text: str) -> bool:
    """Return whether the shop understands the click on a text: the original does not, or reads another action."""
    return "[" not in text and "\n" not in text and text != "search"


def admissible(visit: Visit) -> list[str]:
    """List the clicks that the page offers; on the search page the search for the instruction."""
    if visit.page == "search":
        return [search_action(visit.goal.instruction.lower())]
    return [f"click[{text}]" for text in visit.targets if can_be_clicked(text)]
