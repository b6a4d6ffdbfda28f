"""The best experts of a token by their scores, in torch."""

import torch
import torch.nn.functional as F

from kit.gguf.keys import NEAR, ROOTED, SIGMOID, SOFTMAX, SPARSEMIXER

_GATING = {SOFTMAX: lambda x: x.softmax(-1), SIGMOID: torch.sigmoid, ROOTED: lambda x: F.softplus(x).sqrt()}


def best_experts(scores, routing, bias=None):
    """(share, expert) of the best experts by scores (tokens, experts), (tokens, used) each. ``bias`` (experts,) counts for the
    choice alone; a group is as good as its two best experts together (DeepSeek-AI 2024, V3). Among equals the lowest number
    comes first, of experts and of groups. On the CPU kit.cpu.routing does this, in a prompt and in a recorded pass."""
    if routing.gating == SPARSEMIXER:
        return _among_near(scores, routing)
    share = _GATING[routing.gating](scores)
    rank = share if bias is None else share + bias
    if routing.groups > 1:
        groups = rank.unflatten(-1, (routing.groups, -1))
        best = _first(groups.topk(2).values.sum(-1), routing.groups_used)
        left_out = torch.ones_like(groups[..., 0], dtype=torch.bool).scatter_(-1, best, False)
        rank = groups.masked_fill(left_out[..., None], -torch.inf).flatten(-2)
    chosen = _first(rank, routing.used)
    share = share.gather(-1, chosen)
    if routing.normed:
        share = share / share.sum(-1, keepdim=True).clamp_min(2**-14)
    return share * routing.scale, chosen


def _among_near(scores, routing):
    """Each share is a softmax over the scores not yet chosen that are near the best of them."""
    left, shares, chosen = scores.clone(), [], []
    for _ in range(routing.used):
        chosen.append(_first(left, 1))
        best = left.gather(-1, chosen[-1])
        far = best - left > NEAR * left.abs().maximum(best)
        shares.append(1 / left.sub(best).exp().masked_fill(far, 0).sum(-1, keepdim=True))
        left = left.scatter(-1, chosen[-1], torch.finfo(left.dtype).min)
    return torch.cat(shares, -1) * routing.scale, torch.cat(chosen, -1)


def _first(scores, count):
    """The indices of the largest; ``topk`` takes any of equals."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[..., :count]
