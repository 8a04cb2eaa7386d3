"""Private parts of `langchain_agents` and `langgraph_review`."""
