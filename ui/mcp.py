"""Answers to MCP clients as JSON."""

import json
from typing import Any

from gradio import Blocks
from gradio_client.utils import is_file_obj_with_meta


def answer_in_json(blocks: Blocks) -> None:
    """Let the tools of a page that is served answer in JSON; Gradio answers as Python writes its objects."""
    server: Any = blocks.mcp_server_obj
    if server is not None:
        written = server.postprocess_output_data
        server.postprocess_output_data = lambda data, root: written([_told(output) for output in data], root)


def _told(output: Any) -> Any:
    """Text and files as they are, the rest as JSON."""
    return (
        output if isinstance(output, str) or is_file_obj_with_meta(output) else json.dumps(output, ensure_ascii=False)
    )
