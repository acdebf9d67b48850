"""Draw the database of a shop, and a question about it with the tool calls that answer it."""

import dataclasses
import random
from collections.abc import Callable

from turnwise.credit.shaping.tool_calls import ToolCall

NAMES = ("ann", "ben", "eve", "finn", "ida", "jon", "kim", "leo", "mia", "ola", "rosa", "tom")
CITIES = ("bergen", "cork", "dover", "ghent", "lyon", "oslo", "porto", "york")
PRODUCTS = ("bowl", "chair", "clock", "desk", "fan", "jug", "kettle", "lamp", "mug", "pan", "rug", "shelf", "stool")
STATES = ("packed", "paid", "returned", "sent")
NUM_CUSTOMERS = 8
MOST = {"day": 28, "price": 99, "stock": 60, "quantity": 9}
"""Largest values; all are at least 1, and stock at least 0."""


@dataclasses.dataclass(frozen=True, slots=True)
class Customer:
    """A row of the table of customers; no two have the same name and city."""

    name: str
    city: str


@dataclasses.dataclass(frozen=True, slots=True)
class ProductRow:
    """A row of the table of products; prices differ."""

    name: str
    price: int
    stock: int


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """A row of the table of orders."""

    customer: int  # number of the customer
    day: int  # day of the order, different among the orders of a customer
    status: str  # one of `STATES`
    lines: tuple[tuple[int, int], ...]  # product and quantity, with different quantities


@dataclasses.dataclass(frozen=True)
class Desk:
    """A database and a question."""

    customers: dict[int, Customer]  # customers by number
    products: dict[int, ProductRow]  # products by number
    orders: dict[int, Order]  # orders by number
    kind: str = ""  # kind of the question, a key of `QUESTIONS`
    question: str = ""
    answer: str = ""
    calls: tuple[ToolCall, ...] = ()  # tool calls that find the answer, in order, without the answer itself


def draw_desk(seed: int, kinds: tuple[str, ...]) -> Desk:
    """Draw the database and the question of a seed. The question is of one of these kinds."""
    chance = random.Random(seed)
    numbers = iter(chance.sample(range(1, 100), 99))
    people = [(name, city) for name in NAMES for city in CITIES]
    customers = {next(numbers): Customer(*each) for each in chance.sample(people, NUM_CUSTOMERS)}
    prices = chance.sample(range(1, MOST["price"] + 1), len(PRODUCTS))
    products = {
        next(numbers): ProductRow(name, price, chance.randint(0, MOST["stock"]))
        for name, price in zip(PRODUCTS, prices, strict=True)
    }
    orders = {}
    for customer in customers:
        for day in sorted(chance.sample(range(1, MOST["day"] + 1), chance.randint(1, 3))):
            bought = chance.sample(sorted(products), chance.randint(2, 3))
            quantities = chance.sample(range(1, MOST["quantity"] + 1), len(bought))
            status = chance.choice(STATES)
            orders[next(numbers)] = Order(customer, day, status, tuple(zip(bought, quantities, strict=True)))
    desk = Desk(customers, products, orders)
    kind = chance.choice(kinds)
    question, answer, calls = QUESTIONS[kind](desk, chance)
    return dataclasses.replace(desk, kind=kind, question=question, answer=answer, calls=tuple(calls))


Asked = tuple[str, str, list[ToolCall]]
"""A question, its answer, and the calls that find it."""


def _order_of(desk: Desk, chance: random.Random) -> tuple[str, Order, list[ToolCall]]:
    """Choose an order; return how a question names it, and the calls that find it."""
    number = chance.choice(sorted(desk.orders))
    order = desk.orders[number]
    customer = desk.customers[order.customer]
    calls = [
        ToolCall("customer", {"name": customer.name, "city": customer.city}),
        ToolCall("orders", {"customer": order.customer}),
        ToolCall("order", {"order": number}),
    ]
    return f"the order of {customer.name} from {customer.city} of day {order.day}", order, calls


def _status(desk: Desk, chance: random.Random) -> Asked:
    named, order, calls = _order_of(desk, chance)
    return f"what is the status of {named}?", order.status, calls


def _most(column: str) -> Callable[[Desk, random.Random], Asked]:
    def ask(desk: Desk, chance: random.Random) -> Asked:
        named, order, calls = _order_of(desk, chance)
        product = max(order.lines, key=lambda line: line[1])[0]
        value = getattr(desk.products[product], column)
        calls.append(ToolCall("product", {"product": product}))
        return f"what is the {column} of the product with the largest quantity in {named}?", str(value), calls

    return ask


def _cheapest(desk: Desk, chance: random.Random) -> Asked:
    named, order, calls = _order_of(desk, chance)
    calls += [ToolCall("product", {"product": product}) for product, _ in order.lines]
    cheapest = min((desk.products[product] for product, _ in order.lines), key=lambda product: product.price)
    return f"what is the name of the product with the lowest price in {named}?", cheapest.name, calls


QUESTIONS: dict[str, Callable[[Desk, random.Random], Asked]] = {
    "status": _status,
    "price": _most("price"),
    "stock": _most("stock"),
    "cheapest": _cheapest,
}
"""Kinds of questions, by name."""
MOST_TURNS = {"status": 4, "price": 5, "stock": 5, "cheapest": 7}
"""Maximum number of turns of a question's reference, including the answer."""
