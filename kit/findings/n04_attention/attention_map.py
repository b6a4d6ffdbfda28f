"""What attention looks at: the weights of every layer and head over a text, of a trained model or a generated one."""

import math

import numpy as np
import torch

import kit
from kit.lab import figures
from kit.model import attention

TEXT = "The capital of France is Paris, and the capital of Italy is"


def maps(file, tokens: list[int]) -> list[np.ndarray]:
    """Of each layer the attention of every head, (heads, tokens, tokens): each row sums to 1."""
    found = []

    def recorded(q, k, v, scale, window=0, cap=0.0, sinks=None):
        scores = q @ k.repeat_interleave(len(q) // len(k), 0).mT * scale
        scores = cap * torch.tanh(scores / cap) if cap else scores
        unseen = attention.hidden(0, q.shape[1], 0, k.shape[1], window)
        found.append(scores.masked_fill(unseen, -math.inf).softmax(-1).numpy())
        return attention.blas(q, k, v, scale, window, cap, sinks)

    attention.ATTENTION["recorded"] = recorded
    try:
        kit.Transformer(kit.Weights(file), attention="recorded").logits(tokens)
    finally:
        del attention.ATTENTION["recorded"]
    return found


def spread(found: list[np.ndarray]) -> np.ndarray:
    """(layers, heads): entropy of the last token's attention over that of an even one, 1: it looks everywhere alike."""
    last = np.array([layer[:, -1] for layer in found])
    return -(last * np.log(np.maximum(last, 1e-30))).sum(-1) / math.log(last.shape[-1])


def figure(found: list[np.ndarray], words: list[str], what: str):
    """The head that looks least at the first token, where many heads rest, token by token; beside it the spread of all."""
    spreads = spread(found)
    resting = np.array([layer[:, 1:, 0].mean(-1) for layer in found])
    layer, head = np.unravel_index(resting.argmin(), resting.shape)
    drawn, (one, every) = figures.new(1, 2, height=4.2, width_ratios=[1.5, 1])
    image = one.imshow(found[layer][head], cmap="Blues", vmin=0, vmax=1)
    one.set_xticks(range(len(words)), words, rotation=90, fontsize=8.5)
    one.set_yticks(range(len(words)), words, fontsize=8.5)
    one.set(title=f"Layer {layer}, head {head}: not at the start", xlabel="looks at", ylabel="token")
    one.grid(visible=False)
    drawn.colorbar(image, ax=one, label="attention", shrink=0.7)
    every.plot(np.repeat(np.arange(len(spreads)), spreads.shape[1]), spreads.reshape(-1), "o", ms=4)
    figures.bound(every, 1.0, "even over all tokens")
    every.set(xlabel="layer", ylabel="entropy of a head's attention, relative", ylim=(0, 1.1), title="Every head")
    every.legend(loc="lower right", fontsize=8.5)
    typical = math.exp(np.median(spreads) * math.log(len(words)))
    drawn.suptitle(f"{what}: heads look at {typical:.1f} of {len(words)} tokens, in the median")
    return drawn
