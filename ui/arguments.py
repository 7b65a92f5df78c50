"""What handlers cannot answer, said in a sentence: values they do not take, and whatever goes wrong in them."""

from typing import Any

import gradio as gr

from kvq_core.errors import KvqError
from kvq_core.logs import tell_error
from ui.panels.launch import UNEXPECTED

NOT_TAKEN = (
    "These are not the values that are taken here: their number or kind is another one. /gradio_api/info lists what "
    "each endpoint takes."
)


class Blocks(gr.Blocks):
    """Gradio's, which would print a trace and answer null. Anybody can call any handler, in any order."""

    async def preprocess_data(self, *arguments: Any, **more: Any) -> Any:
        try:
            return await super().preprocess_data(*arguments, **more)
        except gr.Error as error:
            error.print_exception = False
            raise
        except Exception:
            raise gr.Error(NOT_TAKEN, print_exception=False) from None

    async def call_function(self, *arguments: Any, **more: Any) -> Any:
        try:
            return await super().call_function(*arguments, **more)
        except gr.Error:
            raise
        except KvqError as error:
            raise gr.Error(str(error), print_exception=False) from None
        except Exception as error:
            tell_error("request failed", error)
            raise gr.Error(UNEXPECTED, print_exception=False) from None
