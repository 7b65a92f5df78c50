"""Stands in for the package `spaces` on ZeroGPU: a decorated generator runs in a forked process, in a thread of it,
and everything that crosses is pickled. `asked` and `workers` tell the tests what happened; `busy` is what a visitor
without quota meets."""

import multiprocessing
import pickle
import threading
from functools import wraps

import gradio as gr

asked: list[int] = []
workers: list[multiprocessing.Process] = []
busy: list[str] = []
crossed: list[int] = []  # bytes of each thing that came back
_fork = multiprocessing.get_context("fork")


def GPU(task=None, *, duration=60):  # noqa: N802
    if task is None:
        return lambda task: GPU(task, duration=duration)

    @wraps(task)
    def handler(*args):
        if busy:
            raise gr.Error(busy[0], title="ZeroGPU quota exceeded", print_exception=False)
        asked.append(duration(*args) if callable(duration) else duration)
        given, results, stop = _fork.SimpleQueue(), _fork.SimpleQueue(), _fork.Event()
        worker = _fork.Process(target=_work, args=[task, given, results, stop], daemon=True)
        worker.start()
        workers.append(worker)
        given.put(pickle.dumps(args))
        while (answer := _plain(results.get()))[0] == "ok":
            try:
                yield answer[1]
            except GeneratorExit:
                stop.set()
                raise
        if answer[0] == "error":
            raise gr.Error(answer[1], title="ZeroGPU worker error", print_exception=False)

    return handler


def _work(task, given, results, stop):
    def iterate():
        items = task(*pickle.loads(given.get()))
        try:
            for item in items:
                if stop.is_set():
                    items.close()
                    break
                results.put(pickle.dumps(("ok", item)))
        except Exception as error:
            results.put(pickle.dumps(("error", type(error).__name__)))
        results.put(pickle.dumps(("end", None)))

    thread = threading.Thread(target=iterate)
    thread.start()
    thread.join()


def _plain(data: bytes):
    crossed.append(len(data))
    assert b"torch._utils" not in data and b"torch.multiprocessing" not in data, "a tensor crossed"
    return pickle.loads(data)
