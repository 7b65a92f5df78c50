"""Values that a handler does not take, refused in a sentence before it is called."""

from typing import Any

import gradio as gr

NOT_TAKEN = (
    "These are not the values that are taken here: their number or kind is another one. /gradio_api/info lists what "
    "each endpoint takes."
)


class Blocks(gr.Blocks):
    """Gradio's, which would print a trace and answer null."""

    async def preprocess_data(self, *arguments: Any, **more: Any) -> Any:
        try:
            return await super().preprocess_data(*arguments, **more)
        except gr.Error as error:
            error.print_exception = False
            raise
        except Exception:
            raise gr.Error(NOT_TAKEN, print_exception=False) from None
