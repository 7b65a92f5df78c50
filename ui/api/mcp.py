"""Answers to MCP clients as JSON."""

import json
from typing import Any

from gradio import Blocks


def answer_in_json(blocks: Blocks) -> None:
    """Let the tools of a page that is served answer in JSON; Gradio answers as Python writes its objects."""
    server: Any = blocks.mcp_server_obj
    if server is not None:
        written = server.postprocess_output_data
        server.postprocess_output_data = lambda data, root: written([_told(output) for output in data], root)


def _told(output: Any) -> Any:
    """Text and files as they are, the rest as JSON."""
    file = isinstance(output, dict) and output.keys() >= {"path", "meta"}
    return output if file or isinstance(output, str) else json.dumps(output, ensure_ascii=False)
