"""LangGraph by hand: a graph of a model and its tools."""

from langchain_openai import ChatOpenAI
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition


def weather(city: str) -> str:
    """The weather in a city."""
    return f"{city}: {len(city) * 4} degrees"


model = ChatOpenAI(model="gpt-4o").bind_tools([weather])


def ask(state: MessagesState) -> MessagesState:
    return {"messages": [model.invoke(state["messages"])]}


graph = StateGraph(MessagesState)
graph.add_node("ask", ask)
graph.add_node("tools", ToolNode([weather]))
graph.add_edge(START, "ask")
graph.add_conditional_edges("ask", tools_condition)
graph.add_edge("tools", "ask")
question = {"messages": [("user", "Is it warmer in Paris or in Lisbon?")]}
print(graph.compile().invoke(question)["messages"][-1].content)
