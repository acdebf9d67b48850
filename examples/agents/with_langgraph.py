"""An agent of the package `langgraph`, as a function that `[harness]` runs.

turnwise train storeroom-agent harness.run=with_langgraph:agent
"""

from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition

from turnwise.worlds.storeroom.stock import Stock

CALLS = 3


def agent(task, endpoint):
    """Play a task, and return its reward."""
    stock = Stock(task)
    tools = [stock.count, stock.reserve, stock.release]
    chat = ChatOpenAI(model=endpoint.model, base_url=endpoint.base_url, api_key=endpoint.api_key, max_retries=0)
    model = chat.bind_tools(tools)
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [model.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode(tools))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    try:
        ended = graph.compile().invoke({"messages": stock.request}, {"recursion_limit": 2 * CALLS})
        said = ended["messages"][-1].text
    except GraphRecursionError:  # raised, it would lose the trajectory
        said = ""
    return float(stock.solved(said))
