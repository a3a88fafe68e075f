"""The model of the demo: a small convolutional network of any width."""

from __future__ import annotations

from torch import nn


def small_network(width: int, classes: int, side: int) -> nn.Sequential:
    """Build three blocks of convolution, norm and ReLU, on 16, 8 and 4 pixels a side; ``width`` channels first.

    It takes float images of n x 3 x side x side, and gives n x classes logits. It is
    so small that even without a GPU loading takes most of the time.
    """
    return nn.Sequential(
        *_block(3, width, 7, side // 16),
        *_block(width, 2 * width, 3, 2),
        *_block(2 * width, 4 * width, 3, 2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4 * width, classes),
    )


def _block(before: int, after: int, kernel: int, stride: int) -> list[nn.Module]:
    return [
        nn.Conv2d(before, after, kernel, stride, kernel // 2, bias=False),
        nn.BatchNorm2d(after),
        nn.ReLU(inplace=True),
    ]
