"""How the operations of a step are divided among the cores."""

import torch

from kvq_core.engine import threads


def test_a_divided_product_is_the_same_and_lasts_as_long_as_it_is_asked_for(monkeypatch) -> None:
    linear, x = torch.nn.Linear(24, 101, bias=False), torch.randn(3, 2, 24)
    whole, product, widths = linear(x), torch.nn.functional.linear, []

    def noted(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        widths.append(len(weight))
        return product(x, weight)

    monkeypatch.setattr(torch.nn.functional, "linear", noted)
    with torch.no_grad(), threads.divided(linear, 2):
        divided = linear(x)
    assert sorted(widths) == [50, 51] and "forward" not in vars(linear)
    torch.testing.assert_close(divided, whole)


def test_what_is_no_plain_matrix_is_left_whole() -> None:
    for module, cores in ((torch.nn.Linear(4, 6), 2), (torch.nn.Linear(4, 6, bias=False), 1), (None, 2)):
        with threads.divided(module, cores):
            assert module is None or "forward" not in vars(module)
